//! Sealed checkpoints that are not those of a run.

use std::iter;

use burn::backend::{Autodiff, Flex, flex::FlexDevice};
use burn::module::Module;
use proptest::{prelude::*, sample::Index};
use runs::checkpoint::Checkpoints;
use safetensors::{SafeTensors, serialize, tensor::TensorView};

use super::*;

type Tape = Autodiff<Flex>;

fn config() -> Config {
    let text = r#"{
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 4, "n_positions": 8, "vocab_size": 264},
        "tokenizer": {"kind": "bytes"}
    }"#;
    Config::from_text(text, "a tiny run", &[]).expect("a valid configuration")
}

fn save<B: Backend>(
    folder: &Path,
    gpt: &Gpt<B>,
    optimizer: &Optimizer<Flex>,
    config: &Config,
) -> anyhow::Result<()> {
    let (progress, tokenizer) = (&Progress::start(1), &Tokenizer::bytes(&tokenizer::CHAT_SPECIALS));
    Contents { gpt, optimizer, config, progress, tokenizer }.save(folder)
}

fn write(folder: &Path, config: &Config) -> anyhow::Result<()> {
    let gpt = Gpt::<Tape>::new(&config.model, 3, &FlexDevice)?;
    let mut optimizer = Optimizer::<Flex>::new(&config.train);
    let zeros = |shape: [usize; 2]| Tensor::<Flex, 2>::zeros(shape, &FlexDevice).into_primitive().tensor();
    let moments = Moments { time: 1, first: zeros([264, 4]), second: Some(zeros([264, 4])) };
    optimizer.moments.insert("wte".to_owned(), moments);
    save(folder, &gpt, &optimizer, config)
}

fn refused(change: impl Fn(&mut Vec<(String, TensorView<'_>)>)) -> [String; 2] {
    let run = tempfile::tempdir().expect("a folder");
    let config = config();
    let saved = Checkpoints::in_run(run.path()).save(1, 0, |folder| {
        write(folder, &config)?;
        let bytes = fs::read(folder.join(MOMENTS))?;
        let mut tensors = SafeTensors::deserialize(&bytes)?.tensors();
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        change(&mut tensors);
        Ok(fs::write(folder.join(MOMENTS), serialize(tensors, None)?)?)
    });
    let path = Checkpoints::open(&saved.expect("saved").path).expect("every byte is as it was written").path;
    let resumed = restore::<Flex>(&path, &config, &FlexDevice, Owners::default()).map(|_| ());
    [resumed, check(&path)].map(|outcome| format!("{:#}", outcome.expect_err("it cannot be resumed")))
}

#[test]
fn a_checkpoint_resumes_with_the_moments_it_was_saved_with() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &config()).expect("saved");
    check(folder.path()).expect("it is whole");
    let (_, optimizer) =
        restore::<Flex>(folder.path(), &config(), &FlexDevice, Owners::default()).expect("restored");
    assert_eq!(optimizer.bytes(), 2 * 264 * 4 * 4);
}

#[test]
fn equal_runs_leave_equal_files() {
    let saved = || {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path(), &config()).expect("saved");
        [WEIGHTS, MOMENTS, STATE, CONFIG].map(|file| fs::read(folder.path().join(file)).expect("read"))
    };
    let first = saved();
    assert!((0..8).all(|_| saved() == first));
}

#[test]
fn moments_that_are_not_those_of_the_weights_are_refused() {
    static NUMBERS: [u8; 264 * 4 * 4] = [0; 264 * 4 * 4];
    let view = |dtype, shape: &[usize]| TensorView::new(dtype, shape.to_vec(), &NUMBERS).expect("it fits");
    let cases = [
        (refused(|tensors| tensors.truncate(1)), "optimizer.safetensors lacks `wte.second`"),
        (
            refused(|tensors| tensors[1].1 = view(Dtype::F32, &[4, 264])),
            "holds `wte.second` as F32 [4, 264], which should be F32 [264, 4]",
        ),
        (
            refused(|tensors| tensors[0].1 = view(Dtype::F16, &[264, 8])),
            "holds `wte.first` as F16 [264, 8], which should be F32 [264, 4]",
        ),
        (
            refused(|tensors| tensors.push(("wpe.first".to_owned(), view(Dtype::F32, &[264, 4])))),
            "holds 3 tensors and state.json accounts for 2",
        ),
    ];
    for (said, expected) in cases {
        assert!(said.iter().all(|said| said.contains(expected)), "{expected:?} is not in {said:?}");
    }
}

#[test]
fn weights_that_are_not_the_models_are_called_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &config()).expect("saved");
    let wider = Config { model: models::GptConfig { n_inner: Some(32), ..config().model }, ..config() };
    fs::write(folder.path().join(CONFIG), wider.to_json()).expect("written");
    let said = check(folder.path()).expect_err("another shape").to_string();
    assert!(said.contains("`blocks.0.mlp.up.weight` has shape [4, 16], the model needs [4, 32]"), "{said}");
}

#[test]
fn a_checkpoint_with_nan_weights_is_not_saved() {
    let run = tempfile::tempdir().expect("a folder");
    let config = config();
    let gpt = Gpt::<Tape>::new(&config.model, 3, &FlexDevice).expect("a valid shape");
    let mut broken = gpt.no_grad();
    broken.wte = Param::from_tensor(broken.wte.val().mul_scalar(f32::NAN));
    let optimizer = Optimizer::<Flex>::new(&config.train);
    let checkpoints = Checkpoints::in_run(run.path());
    let saved = checkpoints.save(1, 0, |folder| save(folder, &broken, &optimizer, &config));
    let said = saved.expect_err("it is broken").to_string();
    assert!(said.contains("tensor `wte` holds NaN"), "{said}");
    assert!(checkpoints.folders().expect("readable").is_empty());
}

#[test]
fn moments_that_are_nan_are_neither_saved_nor_resumed() {
    let run = tempfile::tempdir().expect("a folder");
    let config = config();
    let gpt = Gpt::<Tape>::new(&config.model, 3, &FlexDevice).expect("a valid shape");
    let moment = |value: f32| Tensor::<Flex, 2>::full([264, 4], value, &FlexDevice).into_primitive().tensor();
    let mut optimizer = Optimizer::<Flex>::new(&config.train);
    let moments = Moments { time: 1, first: moment(0.0), second: Some(moment(f32::INFINITY)) };
    optimizer.moments.insert("wte".to_owned(), moments);
    let saved = save(run.path(), &gpt, &optimizer, &config);
    let said = format!("{:#}", saved.expect_err("it is broken"));
    assert!(said.contains("tensor `wte.second` holds inf"), "{said}");

    write(run.path(), &config).expect("saved");
    let path = run.path().join(MOMENTS);
    let mut bytes = fs::read(&path).expect("read");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).expect("written");
    let resumed = restore::<Flex>(run.path(), &config, &FlexDevice, Owners::default()).map(|_| ());
    let said = format!("{:#}", resumed.expect_err("it is broken"));
    assert!(said.contains("tensor `wte.second` holds NaN"), "{said}");
}

#[test]
fn no_state_however_written_brings_resuming_or_inspecting_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config();
    write(folder.path(), &config).expect("saved");
    let [state, moments] = [STATE, MOMENTS].map(|file| folder.path().join(file));
    let texts = [&state, &moments].map(|file| fs::read(file).expect("read"));
    let numbers = ["-1", "1e308", "18446744073709551615", "18446744073709551616", "null", "[]", "{}", "\"\""];
    let put = prop_oneof![
        "[-0-9eE.,:{}\\[\\]\"a-z/]{0,12}",
        prop::sample::select(numbers.map(str::to_owned).to_vec()),
    ];
    proptest!(ProptestConfig::with_cases(suite::cases(256)), |(of in 0..2_usize, at in any::<Index>(), removed in 0..24_usize, put in put)| {
        let whole = &texts[of];
        // Numbers cannot be malformed, only the bytes before them.
        let at = at.index(whole.len().min(400));
        let changed = [&whole[..at], put.as_bytes(), &whole[(at + removed).min(whole.len())..]].concat();
        let path = [&state, &moments][of];
        fs::write(path, &changed).expect("written");
        let checked = check(folder.path());
        let restored = restore::<Flex>(folder.path(), &config, &FlexDevice, Owners::default());
        if restored.is_ok() {
            prop_assert!(checked.is_ok(), "{checked:?} of {}", String::from_utf8_lossy(&changed));
        }
        fs::write(path, whole).expect("written");
    });
}

/// In rounds of a time, ranks take other numbers of steps.
#[test]
fn moments_of_a_rank_come_back_with_the_steps_that_they_took() {
    let optimizer = |times: [usize; 2], numbers: f32| {
        let mut optimizer: Optimizer<Flex> = Optimizer::new(&config().train);
        for (name, time) in ["bias", "weight"].into_iter().zip(times) {
            let tensor =
                |number| Tensor::<Flex, 1>::from_floats([number; 3], &FlexDevice).into_primitive().tensor();
            let moments = Moments { time, first: tensor(numbers), second: Some(tensor(2.0 * numbers)) };
            optimizer.moments.insert(name.to_owned(), moments);
        }
        optimizer
    };
    let own = optimizer([83, (1 << 24) + 1], 0.5);
    let mut resumed = optimizer([250, 250], 7.0);

    let Pairs { lengths, fetch } = moments(&own);
    let pairs: Vec<_> = (0..lengths.len()).map(|n| fetch(n).expect("readable")).collect();
    assert!(pairs.iter().zip(&lengths).all(|(pair, lengths)| pair.each_ref().map(Vec::len) == *lengths));
    resumed.replace_moments(pairs, iter::empty(), &FlexDevice).expect("of two parameters");
    assert_eq!(resumed.moments.values().map(|kept| kept.time).collect::<Vec<_>>(), [83, (1 << 24) + 1]);
    assert_eq!(moment_on_device(&resumed, "weight", 1).expect("readable"), [1.0; 3]);
    let one = vec![Default::default(), [vec![83.0], vec![0.0]]];
    let few = resumed.replace_moments(one, iter::empty(), &FlexDevice).expect_err("of one");
    assert_eq!(few.to_string(), "moments of 1 parameters were saved, of 2");
}

/// Each rank skips steps for itself.
#[test]
fn moments_come_back_though_this_rank_or_rank_0_has_skipped_all_steps() {
    let saved = |optimizer: &Optimizer<Flex>| {
        let Pairs { lengths, fetch } = moments(optimizer);
        (0..lengths.len()).map(|n| fetch(n).expect("readable")).collect::<Vec<_>>()
    };
    let config = config();
    let gpt = Gpt::<Tape>::new(&config.model, 3, &FlexDevice).expect("a valid shape");
    let learning = || gpt.learning().into_iter().map(|(_, parameter)| parameter);
    let skipped = || Optimizer::<Flex>::new(&config.train);
    let mut parameters: Vec<_> = learning().collect();
    parameters.sort_by(|one, other| one.name.cmp(&other.name));
    let of_parameter = |n: usize| {
        let (parameter, number) = (&parameters[n], n as f32);
        let second = keeps_second_moment(config.train.optimizer, &parameter.name, parameter.shape.len());
        let elements = parameter.elements() as usize;
        [vec![number; elements], vec![-number; if second { elements } else { 0 }]]
    };
    let mut pairs: Vec<_> = (0..parameters.len()).map(of_parameter).collect();
    pairs.push([vec![3.0; parameters.len()], vec![0.0; parameters.len()]]);

    let mut resumed = skipped();
    resumed.replace_moments(pairs.clone(), learning(), &FlexDevice).expect("of all parameters");
    assert_eq!(saved(&resumed), pairs);
    resumed.replace_moments(saved(&skipped()), learning(), &FlexDevice).expect("of none");
    assert!(resumed.moments.is_empty());
}
