//! Directories of weights that are broken or mean harm: an error, never a panic, a hang or a flood of memory.

use std::fs;
use std::path::Path;

use models::weights::{self, IndexProblem, Stored, WeightsError};
use models::{Gpt, GptConfig};
use tempfile::TempDir;

use crate::fixtures::{Cpu, DEVICE, model, shrunk};

const DESCRIPTION: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";
const WEIGHTS: &str = "model.safetensors";

/// A directory `published` within another one.
fn published() -> (TempDir, std::path::PathBuf) {
    let around = tempfile::tempdir().expect("a folder");
    let directory = around.path().join("published");
    fs::create_dir(&directory).expect("made");
    weights::save_pretrained(&model(&shrunk("gpt2")), &directory, Stored::F32).expect("saves");
    (around, directory)
}

fn load(directory: &Path) -> Result<GptConfig, WeightsError> {
    weights::load_pretrained::<Cpu>(directory, &DEVICE).map(|gpt: Gpt<Cpu>| gpt.config().clone())
}

/// The index that lists `name` for every tensor of the file of weights.
fn index_of(weights: &Path, name: &str) -> String {
    let bytes = fs::read(weights).expect("reads");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let map: serde_json::Map<_, _> =
        file.names().into_iter().map(|tensor| (tensor.to_owned(), name.into())).collect();
    serde_json::json!({ "weight_map": map }).to_string()
}

#[test]
fn an_index_opens_files_of_its_own_folder_and_no_others() {
    let (around, directory) = published();
    let outside = around.path().join("x");
    fs::rename(directory.join(WEIGHTS), &outside).expect("moved");
    fs::create_dir(directory.join("below")).expect("made");
    fs::copy(&outside, directory.join("below/x")).expect("copied");
    let absolute = outside.to_str().expect("a name").to_owned();
    for name in ["../x", absolute.as_str(), "below/x", "below/../../x", "./../x", "..", ".", "", "x/"] {
        fs::write(directory.join(INDEX), index_of(&outside, name)).expect("written");
        match load(&directory) {
            Err(WeightsError::Index { problem: IndexProblem::Elsewhere(found), .. }) => {
                assert_eq!(found, name);
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    fs::copy(&outside, directory.join("x")).expect("copied");
    fs::write(directory.join(INDEX), index_of(&outside, "x")).expect("written");
    load(&directory).expect("a file beside its index");
}

#[test]
fn an_index_that_maps_nothing_to_files_is_refused() {
    let (_around, directory) = published();
    for text in ["", "[]", "{}", r#"{"weight_map": []}"#, r#"{"weight_map": {"wte": 3}}"#, "no JSON"] {
        fs::write(directory.join(INDEX), text).expect("written");
        let refused = load(&directory).expect_err("no index");
        assert!(
            matches!(refused, WeightsError::Index { problem: IndexProblem::Json(_), .. }),
            "{text}: {refused}"
        );
    }
    fs::write(directory.join(INDEX), r#"{"weight_map": {}}"#).expect("written");
    let refused = load(&directory).expect_err("an empty index");
    assert!(refused.to_string().ends_with("it names no file"), "{refused}");
}

#[test]
fn files_larger_than_any_of_their_kind_are_not_read() {
    let (_around, directory) = published();
    for name in [DESCRIPTION, INDEX] {
        let path = directory.join(name);
        let kept = fs::read(&path).unwrap_or_default();
        fs::File::create(&path).and_then(|file| file.set_len(200 << 30)).expect("a sparse file");
        let refused = load(&directory).expect_err("too large").to_string();
        assert!(refused.contains("has 214748364800 bytes"), "{refused}");
        fs::write(&path, kept).expect("written");
    }
}

#[cfg(unix)]
#[test]
fn fifos_devices_and_folders_are_refused_wherever_a_file_is_read() {
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    let (around, directory) = published();
    let fifo = around.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs").success());
    for odd in [fifo.as_path(), Path::new("/dev/zero"), around.path()] {
        for name in [DESCRIPTION, INDEX, WEIGHTS] {
            let path = directory.join(name);
            let kept = fs::read(&path).ok();
            if kept.is_some() {
                fs::remove_file(&path).expect("removed");
            }
            std::os::unix::fs::symlink(odd, &path).expect("linked");
            let (told, heard) = channel();
            let reading = directory.clone();
            std::thread::spawn(move || told.send(load(&reading).map_err(|error| error.to_string())));
            // A program that reads here waits for ever.
            let refused = heard.recv_timeout(Duration::from_secs(20)).expect("an answer within 20 seconds");
            let refused = refused.expect_err("no regular file");
            assert!(refused.contains("it is no regular file"), "{name}: {refused}");
            fs::remove_file(&path).expect("removed");
            if let Some(kept) = kept {
                fs::write(&path, kept).expect("written");
            }
        }
    }
    load(&directory).expect("everything is back");
}
