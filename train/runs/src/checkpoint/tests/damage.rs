//! Every change to a checkpoint is detected and its file named.

use std::fs::{self, File};

use proptest::{prelude::*, sample::Index};

use super::*;

fn damaged_file(error: CheckpointError) -> String {
    match error {
        CheckpointError::Damaged { file, .. } => file,
        other => panic!("{other}"),
    }
}

fn flip(path: &Path, at: usize, bit: u8) {
    let mut bytes = fs::read(path).expect("it is there");
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).expect("written");
}

#[test]
fn any_flipped_bit_is_found_and_named() {
    let (_run, checkpoints) = store();
    let saved = save(&checkpoints, 3);
    proptest!(ProptestConfig::with_cases(suite::cases(256)), |(file in 0..FILES.len(), at in any::<Index>(), bit in 0..8_u8)| {
        let (file, bytes) = FILES[file];
        flip(&saved.path.join(file), at.index(bytes), bit);
        let error = checkpoints.find(Which::Latest).expect_err("it is damaged");
        flip(&saved.path.join(file), at.index(bytes), bit);
        prop_assert!(error.to_string().contains("has the SHA-256"), "{error}");
        prop_assert_eq!(damaged_file(error), file);
        prop_assert!(checkpoints.find(Which::Latest).is_ok());
    });
}

#[test]
fn any_truncation_is_found_and_named() {
    let (_run, checkpoints) = store();
    let saved = save(&checkpoints, 3);
    proptest!(ProptestConfig::with_cases(suite::cases(256)), |(file in 0..FILES.len(), at in any::<Index>())| {
        let (file, bytes) = FILES[file];
        let (path, left) = (saved.path.join(file), at.index(bytes));
        File::options().write(true).open(&path).and_then(|file| file.set_len(left as u64)).expect("cut");
        let error = checkpoints.find(Which::Latest).expect_err("it is damaged");
        fs::write(&path, contents_of(3, file, bytes)).expect("written");
        prop_assert!(error.to_string().contains(&format!("has {left} bytes, the manifest says {bytes}")), "{error}");
        prop_assert_eq!(damaged_file(error), file);
    });
}

#[test]
fn a_damaged_manifest_is_named() {
    let (_run, checkpoints) = store();
    let path = save(&checkpoints, 3).path;
    flip(&path.join("manifest.json"), 40, 0);
    assert_eq!(damaged_file(Checkpoints::open(&path).expect_err("it is damaged")), "manifest.json");
}

#[test]
fn missing_and_added_files_are_named() {
    let (_run, checkpoints) = store();
    let path = save(&checkpoints, 3).path;
    let found = || damaged_file(Checkpoints::open(&path).expect_err("it is damaged"));
    fs::write(path.join("tokenizer/notes"), "").expect("written");
    assert_eq!(found(), "tokenizer/notes");
    fs::remove_file(path.join("tokenizer/notes")).expect("removed");
    fs::remove_file(path.join("tokenizer/vocabulary")).expect("removed");
    assert_eq!(found(), "tokenizer/vocabulary");
    fs::remove_file(path.join("manifest.json")).expect("removed");
    assert_eq!(found(), "manifest.json");
}

#[cfg(unix)]
#[test]
fn a_link_is_no_part_of_a_checkpoint() {
    let (_run, checkpoints) = store();
    let path = save(&checkpoints, 3).path;
    fs::rename(path.join("state"), path.join("../elsewhere")).expect("moved");
    std::os::unix::fs::symlink("../elsewhere", path.join("state")).expect("linked");
    assert_eq!(damaged_file(Checkpoints::open(&path).expect_err("it is damaged")), "state");
    let link = |folder: &Path| Ok(std::os::unix::fs::symlink("../elsewhere", folder.join("state"))?);
    let error = checkpoints.save(4, 0, link).expect_err("links are refused").to_string();
    assert!(error.contains("state is neither a file nor a folder"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_manifest_and_a_pointer_that_are_devices_are_named() {
    let (_run, checkpoints) = store();
    let manifest = save(&checkpoints, 3).path.join("manifest.json");
    let latest = checkpoints.folder.join("latest");
    for path in [&manifest, &latest] {
        let kept = fs::read(path).expect("it is there");
        fs::remove_file(path).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", path).expect("linked");
        let error = checkpoints.find(Which::Latest).expect_err("it never ends").to_string();
        assert!(
            error.contains("neither a file nor a folder") || error.contains("no regular file"),
            "{error}"
        );
        fs::remove_file(path).expect("removed");
        fs::write(path, kept).expect("written");
    }
    assert_holds(&checkpoints.find(Which::Latest).expect("all is back"), 3);
}

#[test]
fn a_damaged_latest_is_an_error_that_names_the_newest_whole_checkpoint() {
    let (_run, checkpoints) = store();
    let saved = [1, 2, 3, 4].map(|step| save(&checkpoints, step));
    flip(&saved[3].path.join("model"), 5, 0);
    flip(&saved[2].path.join("manifest.json"), 5, 0);
    let error = checkpoints.find(Which::Latest).expect_err("it is damaged");
    let text = error.to_string();
    let CheckpointError::Damaged { path, whole, .. } = error else { panic!("{text}") };
    assert_eq!((path, whole.as_ref()), (saved[3].path.clone(), Some(&saved[1].path)));
    assert!(text.contains(&format!("{} is whole", saved[1].path.display())), "{text}");

    fs::remove_dir_all(&saved[3].path).expect("removed");
    let error = checkpoints.find(Which::Latest).expect_err("it is gone").to_string();
    assert!(error.contains("the folder is missing") && error.contains("step-00000002 is whole"), "{error}");

    fs::write(checkpoints.folder.join("latest"), "../elsewhere\n").expect("written");
    let error = checkpoints.find(Which::Latest).expect_err("it names nothing").to_string();
    assert!(error.contains("`../elsewhere") && error.contains("step-00000002 is whole"), "{error}");
}

#[test]
fn a_damaged_best_does_not_hide_behind_the_latest() {
    let (_run, checkpoints) = store();
    let best = save(&checkpoints, 1);
    checkpoints.mark_best(1).expect("it is there");
    save(&checkpoints, 2);
    flip(&best.path.join("state"), 0, 7);
    assert_eq!(damaged_file(checkpoints.find(Which::Best).expect_err("it is damaged")), "state");
    assert_holds(&checkpoints.find(Which::Latest).expect("it is whole"), 2);
}

#[test]
fn without_a_pointer_the_newest_whole_checkpoint_is_the_latest() {
    let (_run, checkpoints) = store();
    let saved = [1, 2].map(|step| save(&checkpoints, step));
    fs::remove_file(checkpoints.folder.join("latest")).expect("removed");
    assert_holds(&checkpoints.find(Which::Latest).expect("it is whole"), 2);
    flip(&saved[1].path.join("state"), 0, 7);
    assert_holds(&checkpoints.find(Which::Latest).expect("it is whole"), 1);
    flip(&saved[0].path.join("model"), 0, 7);
    let error = checkpoints.find(Which::Latest).expect_err("all are damaged").to_string();
    assert!(
        error.contains("step-00000002 is damaged: state") && error.contains("no other checkpoint"),
        "{error}"
    );
}

#[test]
fn no_damaged_manifest_panics_or_is_accepted() {
    let (_run, checkpoints) = store();
    let saved = save(&checkpoints, 3);
    let path = saved.path.join("manifest.json");
    let whole = fs::read_to_string(&path).expect("text");
    proptest!(ProptestConfig::with_cases(suite::cases(256)), |(at in any::<Index>(), removed in 0..40_usize, put in "[-0-9eE.,:{}\\[\\]\"a-z/]{0,24}")| {
        let from = at.index(whole.len());
        let changed = [&whole[..from], &put, &whole[(from + removed).min(whole.len())..]].concat();
        fs::write(&path, &changed).expect("written");
        let found = checkpoints.find(Which::Latest);
        fs::write(&path, &whole).expect("written");
        prop_assert_eq!(found.is_ok(), changed == whole);
    });
}

#[test]
fn a_manifest_that_names_a_file_twice_is_refused() {
    let (_run, checkpoints) = store();
    let saved = save(&checkpoints, 3);
    let whole = contents::read_manifest(&saved.path).expect("it is whole");
    let mut files = whole.files.clone();
    files.push(files[0].clone());
    let twice = manifest::Manifest::new(whole.step, whole.sequence, files);
    fs::write(saved.path.join(manifest::FILE), twice.to_text()).expect("written");
    let error = checkpoints.find(Which::Latest).expect_err("one of the two is not there");
    assert_eq!(damaged_file(error), whole.files[0].name);
}
