//! `train chat`.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::program::{PROGRAM, assert_code, assert_success, json, stderr, stdout, train_with_input};
use crate::ranks::signal;
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
fn one_prompt_gives_one_answer() {
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

#[test]
fn instructions_precede_each_conversation() {
    let tiny = Tiny::trained(&["train.steps=200", "train.lr=0.005"]);
    let question = "What is 2 plus 2?\n";
    let with_instructions = |system: &str, lines: &str| {
        answers(&train_with_input(tiny.path(), &[&GREEDY[..], &["--system", system]].concat(), lines))
    };

    let alone = answers(&talk(&tiny, question));
    let system =
        (0..30).map(|n| format!("Count to {n}.")).find(|system| with_instructions(system, question) != alone);
    let system = system.expect("some instructions change the answer");
    let answer = &with_instructions(&system, question)[0];
    let lines = format!("{question}/clear\n{question}What day comes after Monday?\n{}", question.repeat(4));
    let said = with_instructions(&system, &lines);
    assert_eq!((said.len(), &said[0], &said[1]), (7, answer, answer), "they stay when the rest is forgotten");

    let long =
        train_with_input(tiny.path(), &[&GREEDY[..], &["--system", &"Wait. ".repeat(20)]].concat(), question);
    assert_code(&long, 2);
    assert!(
        stderr(&long).contains("tokens, instructions included, and the model reads 64"),
        "{}",
        stderr(&long)
    );
}

#[test]
fn a_stop_string_ends_the_answer_before_it() {
    let tiny = Tiny::trained(&["train.steps=30", "train.lr=0.01"]);
    let sample = ["sample", "--from", "run", "--device", "cpu", "--prompt", "What", "--temperature", "1"];
    let said = |more: &[&str]| {
        let output = tiny.train(&[&sample[..], &["--max-new-tokens", "40"], more].concat());
        assert_success(&output);
        output
    };
    let whole = json(&said(&["--json"]))["text"].as_str().expect("a text").to_owned();
    let from =
        whole.char_indices().map(|(at, _)| at).filter(|at| *at > 0).nth(3).expect("a text of some length");
    let stop: String = whole[from..].chars().take(2).collect();
    let expected = whole.split(&stop).next().expect("there is a beginning");
    let cut = json(&said(&["--json", "--stop", &stop]));
    assert_eq!((cut["text"].as_str(), cut["finish"].as_str()), (Some(expected), Some("stopstring")));
    assert_eq!(stdout(&said(&["--stop", &stop])), format!("What{expected}\n\n"));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_and_not_the_conversation() {
    let tiny = Tiny::trained(&[]);
    let endless =
        ["chat", "--from", "run", "--device", "cpu", "--max-new-tokens=60000", "--temperature", "0"];
    let mut command = Command::new(PROGRAM);
    command.args(endless).current_dir(tiny.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut input = child.stdin.take().expect("it is piped");
    let mut output = child.stdout.take().expect("it is piped");
    writeln!(input, "What is 3 plus 4?").expect("it listens");
    output.read_exact(&mut [0; 8]).expect("it begins to answer");
    signal(Signal::INT, child.id());
    writeln!(input, "/quit").expect("it still listens");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("it says the rest");
    assert!(child.wait().expect("it ends").success());
    assert!(rest.chars().count() < 50_000, "the answer was cut short");
}
