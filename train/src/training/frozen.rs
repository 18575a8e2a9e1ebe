//! Frozen groups, and groups with rates of their own: the same bits wherever a parameter is stepped.

use burn::backend::{Flex, flex::FlexDevice};
use models::{Gpt, weights};
use runs::checkpoint::WEIGHTS;
use safetensors::SafeTensors;

use super::sharded::{Trained, trained};
use super::whole_and_by_rows::config;

pub(super) const GROUPS: &str = r#"train.groups=[{"match":"embedding","lr_scale":0.1,"weight_decay":0},
    {"match":"blocks.1","lr_scale":0.5},{"match":"head","lr_scale":2,"weight_decay":0.3}]"#;
const UNCLIPPED: &str = "train.grad_clip=null";
const ON_DEVICE: &str = "memory.optimizer=device";

fn tensors(file: &[u8]) -> SafeTensors<'_> {
    SafeTensors::deserialize(file).expect("it was written as such")
}

fn frozen_and_learned(trained: &Trained, settings: &[&str], is_frozen: impl Fn(&str) -> bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let first: Gpt<Flex> = Gpt::new(&config(settings).model, 3, &FlexDevice).expect("valid");
    let path = folder.path().join(WEIGHTS);
    weights::save(&first, &path, weights::Layout::Native, weights::Stored::F32).expect("saved");
    let first = std::fs::read(path).expect("it was saved");
    let (first, [last, moments, _]) = (tensors(&first), &trained.saved[1][..]) else { panic!("three files") };
    let (last, moments) = (tensors(last), tensors(moments));
    let names = first.names();
    assert!(names.iter().any(|name| is_frozen(name)) && !names.iter().all(|name| is_frozen(name)));
    for name in names {
        let same = first.tensor(name).expect("there").data() == last.tensor(name).expect("there").data();
        assert_eq!(same, is_frozen(name), "{name}");
        assert_eq!(moments.tensor(&format!("{name}.first")).is_err(), is_frozen(name), "{name}");
    }
}

#[test]
fn ranks_have_the_bits_of_one_process_where_groups_are_frozen_or_slower() {
    let freeze = r#"train.freeze=["embedding","blocks.0","norms"]"#;
    let cases: [&[&str]; 5] = [
        &[freeze, "train.recompute=1", "train.together=2"],
        &[r#"train.freeze=["mlp","norms"]"#, GROUPS, "model.compute=bf16", "memory.optimizer_state=bf16"],
        &[freeze, "train.optimizer=sgd", "model.tie_word_embeddings=true"],
        &[GROUPS, "train.optimizer=muon", "memory.device_blocks=1"],
        &[r#"train.freeze=["blocks.1"]"#, "memory.stream=int8", "memory.gradients=int8", "train.recompute=1"],
    ];
    for &settings in suite::first(1, &cases) {
        let settings = [&["train.accumulate=4"], settings].concat();
        let one = trained(&settings, [1, 1], &[]);
        for (shard, worlds) in [("true", [1, 2]), ("true", [4, 1]), ("false", [2, 3])] {
            let shard = format!("memory.shard={shard}");
            let several = trained(&[&settings[..], &[&shard]].concat(), worlds, &[]);
            several.assert_has_bits_of(&one, worlds, &settings);
        }
    }
}

#[test]
fn host_and_device_step_every_group_to_the_same_bits() {
    let freeze = r#"train.freeze=["blocks.0"]"#;
    for rule in ["adamw", "sgd", "muon"] {
        let rule = format!("train.optimizer={rule}");
        let settings = [UNCLIPPED, GROUPS, freeze, &rule, "train.accumulate=2"];
        let on_host = trained(&settings, [1, 1], &[]);
        let on_device = trained(&[&settings[..], &[ON_DEVICE]].concat(), [1, 1], &[]);
        // The host sums the norm otherwise, and counts steps of all rules.
        let numbers = [&on_host, &on_device].map(|run| run.saved.each_ref().map(|files| files[..2].to_vec()));
        assert!(numbers[0] == numbers[1], "{rule}");
        frozen_and_learned(&on_device, &settings, |name| name.starts_with("blocks.0."));
    }
}

#[test]
fn a_scale_of_one_changes_no_bit_and_another_does() {
    let scaled = |scale: &str| {
        let groups = format!(r#"train.groups=[{{"match":"blocks","lr_scale":{scale}}}]"#);
        trained(&[&groups, ON_DEVICE], [1, 1], &[]).saved
    };
    let plain = trained(&[ON_DEVICE], [1, 1], &[]).saved;
    assert!(scaled("1") == plain && scaled("0.5") != plain);
}
