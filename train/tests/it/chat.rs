//! `train chat`.

use std::process::Output;

use crate::program::{assert_success, stdout, train_with_input};
use crate::tiny::Tiny;

const GREEDY: [&str; 8] =
    ["chat", "--from", "run", "--device", "cpu", "--max-new-tokens=6", "--temperature", "0"];

fn talk(tiny: &Tiny, lines: &str) -> Output {
    train_with_input(tiny.path(), &GREEDY, lines)
}

fn answers(output: &Output) -> Vec<String> {
    assert_success(output);
    stdout(output).lines().map(str::to_owned).collect()
}

#[test]
fn questions_from_a_pipe_are_answered_line_by_line() {
    let tiny = Tiny::trained(&[]);
    let said = answers(&talk(&tiny, "What is 3 plus 4?\n\nWhat day comes after Monday?\n"));
    assert_eq!(said.len(), 2, "{said:?}");
}

#[test]
fn clear_forgets_and_quit_ends() {
    // Long enough for what was said before to matter.
    let tiny = Tiny::trained(&["train.steps=100", "train.lr=0.01"]);
    let alone = &answers(&talk(&tiny, "What is 2 plus 2?\n"))[0];
    let after = |first: &str| answers(&talk(&tiny, &format!("{first}\nWhat is 2 plus 2?\n")))[1].clone();
    let questions = (0..30).map(|n| match n % 3 {
        0 => format!("What is {n} plus {n}?"),
        1 => format!("What day comes after day {n}?"),
        _ => "What sound does a dog make? ".repeat(n),
    });
    let first = questions.into_iter().find(|first| after(first) != *alone);
    let first = first.expect("some question before changes the answer");
    let lines = format!("{first}\n/clear\nWhat is 2 plus 2?\n/quit\nWhat is 3 plus 4?\n");
    let cleared = answers(&talk(&tiny, &lines));
    assert_eq!(cleared.len(), 2, "{cleared:?}");
    assert_eq!(cleared[1], *alone, "{first:?} is not forgotten");
}

#[test]
fn one_prompt_is_one_answer() {
    let tiny = Tiny::trained(&[]);
    let piped = answers(&talk(&tiny, "What is 3 plus 4?\n"));
    let once = answers(&tiny.train(&[&GREEDY[..], &["-p", "What is 3 plus 4?"]].concat()));
    assert_eq!(once, piped);
}

#[test]
fn a_long_conversation_forgets_its_oldest_questions() {
    let tiny = Tiny::trained(&[]);
    let lines = "What is 3 plus 4?\n".repeat(6);
    assert_eq!(answers(&talk(&tiny, &lines)).len(), 6);
}
