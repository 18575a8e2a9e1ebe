//! Sampling of tokens, and generation.

use std::cell::RefCell;
use std::ops::ControlFlow;

use models::random::Random;
use models::{
    Adjustment, Finish, GenerateError, Gpt, GptConfig, Overflow, Piece, Request, Sampling, Stop, generate,
};

use crate::fixtures::{Cpu, DEVICE, shrunk};

fn frequencies(logits: &[f32], sampling: &Sampling, history: &[u32]) -> Vec<f64> {
    sampling.validate().expect("valid settings");
    let mut random = Random::new(1);
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..20_000 {
        counts[sampling.choose(logits, history, &mut random) as usize] += 1.0 / 20_000.0;
    }
    counts
}

fn assert_near(found: &[f64], expected: &[f64]) {
    assert!(
        found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.015),
        "{found:?}, expected {expected:?}"
    );
}

fn tenths() -> [f32; 4] {
    [0.1_f32, 0.4, 0.2, 0.3].map(f32::ln)
}

#[test]
fn each_filter_leaves_the_distribution_it_promises() {
    let plain = Sampling::default();
    assert_near(&frequencies(&tenths(), &plain, &[]), &[0.1, 0.4, 0.2, 0.3]);
    let cases = [
        (Sampling { temperature: 0.5, ..plain }, [1.0 / 30.0, 16.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0]),
        (Sampling { temperature: 0.0, ..plain }, [0.0, 1.0, 0.0, 0.0]),
        (Sampling { top_k: Some(2), ..plain }, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
        (Sampling { top_k: Some(99), ..plain }, [0.1, 0.4, 0.2, 0.3]),
        (Sampling { top_p: Some(0.65), ..plain }, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
        (Sampling { top_p: Some(1e-9), ..plain }, [0.0, 1.0, 0.0, 0.0]),
        (Sampling { min_p: Some(0.49), ..plain }, [0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0]),
        (Sampling { top_k: Some(3), top_p: Some(0.7), ..plain }, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
    ];
    for (sampling, expected) in cases {
        assert_near(&frequencies(&tenths(), &sampling, &[]), &expected);
    }
}

#[test]
fn a_filter_never_leaves_nothing_to_choose() {
    let sampling = Sampling { min_p: Some(0.5), ..Sampling::default() };
    let unknown = [f32::NAN; 4];
    assert!(sampling.choose(&unknown, &[], &mut Random::new(1)) < 4);
}

#[test]
fn logits_that_are_no_numbers_end_the_text_with_the_reason() {
    let mut broken: Gpt<Cpu> = Gpt::new(&shrunk("gpt2"), 1, &DEVICE).expect("valid");
    broken.wte = broken.wte.clone().map(|table| table * f32::NAN);
    let prompts = [vec![1, 2]];
    let error =
        generate(&broken, &Request::new(&prompts, 3), |_| ControlFlow::Continue(())).expect_err("no text");
    assert!(error.to_string().contains("not finite"), "{error}");
}

#[test]
fn a_repeated_token_is_penalised_whatever_its_sign() {
    let greedy = Sampling { repetition_penalty: Some(2.0), ..Sampling::greedy() };
    let mut random = Random::new(0);
    assert_eq!(
        greedy.choose(&[3.0, 2.0], &[0, 0], &mut random),
        1,
        "3 / 2 is below 2, however often it came"
    );
    assert_eq!(greedy.choose(&[-1.0, -1.5], &[0], &mut random), 1, "-1 · 2 is below -1.5");
    assert_eq!(greedy.choose(&[3.0, 2.0], &[], &mut random), 0);
}

#[test]
fn penalties_follow_openais_formula_and_biases_add() {
    let adjustment =
        Adjustment { frequency_penalty: 0.5, presence_penalty: 0.25, biases: vec![(0, 4.0), (3, -8.0)] };
    let adjusted = adjustment.apply(&[1.0, 2.0, 3.0, 4.0], &[2, 1, 2]);
    assert_eq!(&*adjusted, [5.0, 1.25, 1.75, -4.0]);
    let negative = Adjustment { frequency_penalty: -1.0, ..Adjustment::default() };
    assert_eq!(&*negative.apply(&[0.0, 0.0], &[1, 1, 1]), [0.0, 3.0], "it encourages repetition");
    assert_eq!(&*Adjustment::default().apply(&[1.0, 2.0], &[0, 1]), [1.0, 2.0]);
}

#[test]
fn invalid_adjustments_are_refused_by_name() {
    for (adjustment, expected) in [
        (Adjustment { frequency_penalty: f64::NAN, ..Adjustment::default() }, "`frequency_penalty` = NaN"),
        (Adjustment { presence_penalty: f64::INFINITY, ..Adjustment::default() }, "`presence_penalty` = inf"),
        (Adjustment { biases: vec![(1, f64::NAN)], ..Adjustment::default() }, "`logit_bias` = NaN"),
        (Adjustment { biases: vec![(4, 1.0)], ..Adjustment::default() }, "`logit_bias` = 4 must be the bias"),
    ] {
        let message = adjustment.validate(4).expect_err("no meaning").to_string();
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn invalid_settings_are_refused_by_name() {
    let plain = Sampling::default();
    let cases = [
        (Sampling { temperature: -1.0, ..plain }, "`temperature` = -1 must be a finite number, 0 or above"),
        (Sampling { temperature: f64::NAN, ..plain }, "`temperature` = NaN"),
        (Sampling { top_k: Some(0), ..plain }, "`top_k` = 0 must be at least 1"),
        (Sampling { top_p: Some(0.0), ..plain }, "`top_p` = 0 must be above 0 and at most 1"),
        (Sampling { min_p: Some(1.5), ..plain }, "`min_p` = 1.5"),
        (Sampling { repetition_penalty: Some(0.0), ..plain }, "`repetition_penalty` = 0"),
    ];
    for (sampling, expected) in cases {
        let message = sampling.validate().expect_err("no meaning").to_string();
        assert!(message.starts_with(expected), "{message}");
    }
}

fn model() -> Gpt<Cpu> {
    let config = GptConfig { initializer_range: 0.4, ..shrunk("llama-1.1b") };
    Gpt::new(&config, 11, &DEVICE).expect("valid")
}

fn request(prompts: &[Vec<u32>], max_new_tokens: usize) -> Request<'_> {
    Request { sampling: Sampling::greedy(), ..Request::new(prompts, max_new_tokens) }
}

fn run(model: &Gpt<Cpu>, request: &Request<'_>) -> Vec<models::Completion> {
    generate(model, request, |_| ControlFlow::Continue(())).expect("a valid request")
}

#[test]
fn a_batch_continues_each_prompt_as_if_it_were_alone() {
    let model = model();
    let prompts = vec![vec![1, 2, 3, 4, 5], vec![7], vec![9, 8]];
    let together = run(&model, &request(&prompts, 10));
    for (prompt, completion) in prompts.iter().zip(&together) {
        let alone = run(&model, &request(std::slice::from_ref(prompt), 10));
        assert_eq!(alone[0], *completion);
        assert_eq!((completion.tokens.len(), completion.finish), (10, Finish::Length));
    }
}

#[test]
fn a_seed_fixes_the_text_and_the_stream_shows_all_of_it() {
    let model = model();
    let prompts = vec![vec![1, 2], vec![3]];
    let seeded =
        |seed| Request { sampling: Sampling { seed, ..Sampling::default() }, ..request(&prompts, 12) };
    let mut streamed = vec![Vec::new(); 2];
    let first = generate(&model, &seeded(1), |piece: Piece<'_>| {
        streamed[piece.prompt].extend_from_slice(piece.tokens);
        ControlFlow::Continue(())
    })
    .expect("valid");
    assert_eq!(first.iter().map(|completion| completion.tokens.clone()).collect::<Vec<_>>(), streamed);
    assert_eq!(first, run(&model, &seeded(1)));
    assert_ne!(first, run(&model, &seeded(2)));
}

#[test]
fn cancelling_stops_before_the_next_token() {
    let model = model();
    let prompts = vec![vec![1], vec![2]];
    let mut seen = 0;
    let completions = generate(&model, &request(&prompts, 20), |_| {
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .expect("valid");
    assert_eq!(completions.iter().map(|c| c.tokens.len()).collect::<Vec<_>>(), [2, 1]);
    assert!(completions.iter().all(|completion| completion.finish == Finish::Cancelled));
}

#[test]
fn an_end_token_ends_its_row_alone() {
    let model = model();
    let prompts = vec![vec![1, 2], vec![3]];
    let free = run(&model, &request(&prompts, 8));
    let end = free[0].tokens[4];
    let expected: Vec<usize> =
        free.iter().map(|c| c.tokens.iter().position(|token| *token == end).unwrap_or(8)).collect();
    let ended = run(&model, &Request { end_tokens: &[end], ..request(&prompts, 8) });
    for ((free, ended), count) in free.iter().zip(&ended).zip(expected) {
        assert_eq!(ended.tokens, free.tokens[..count]);
        let finish = if count < 8 { Finish::EndToken } else { Finish::Length };
        assert_eq!(ended.finish, finish);
    }
}

fn letters(tokens: &[u32]) -> String {
    tokens
        .iter()
        .flat_map(|token| [b'a' + (*token / 8) as u8, b'a' + (*token % 8) as u8].map(char::from))
        .collect()
}

#[test]
fn a_stop_string_across_tokens_never_shows() {
    let model = model();
    let prompts = vec![vec![1, 2]];
    let free = run(&model, &request(&prompts, 12));
    let text = letters(&free[0].tokens);
    let strings = [text[9..14].to_owned()];
    let first = text.find(&strings[0]).expect("it is part of the text");
    let stop = Stop { strings: &strings, decode: &letters };
    let shown = RefCell::new(Vec::new());
    let stopped =
        generate(&model, &Request { stop: Some(stop), ..request(&prompts, 12) }, |piece: Piece<'_>| {
            shown.borrow_mut().extend_from_slice(piece.tokens);
            ControlFlow::Continue(())
        })
        .expect("valid");
    assert_eq!(stopped[0].finish, Finish::StopString);
    assert_eq!(stopped[0].text.as_deref(), Some(&text[..first]));
    assert_eq!(stopped[0].tokens, free[0].tokens[..first / 2]);
    assert_eq!(*shown.borrow(), stopped[0].tokens, "nothing of the stop string was streamed");
}

#[test]
fn a_stop_string_that_never_completes_takes_nothing_away() {
    let model = model();
    let prompts = vec![vec![1, 2]];
    let free = run(&model, &request(&prompts, 6));
    let strings = [format!("{}!", &letters(&free[0].tokens)[8..])];
    let stop = Stop { strings: &strings, decode: &letters };
    let mut shown = Vec::new();
    let finished =
        generate(&model, &Request { stop: Some(stop), ..request(&prompts, 6) }, |piece: Piece<'_>| {
            shown.extend_from_slice(piece.tokens);
            ControlFlow::Continue(())
        })
        .expect("valid");
    assert_eq!((&finished[0].tokens, finished[0].finish), (&free[0].tokens, Finish::Length));
    assert_eq!(shown, free[0].tokens, "what was held back is shown at the end");
}

#[test]
fn past_the_context_window_generation_refuses_or_slides() {
    let model = model();
    let prompts = vec![vec![1; 20], vec![2]];
    let refused =
        generate(&model, &request(&prompts, 6), |_| ControlFlow::Continue(())).expect_err("24 positions");
    let message = refused.to_string();
    assert!(message.contains("20 tokens and 6 more") && message.contains("ask for at most 5"), "{message}");
    assert_eq!(run(&model, &request(&prompts, 5))[0].tokens.len(), 5, "the advice is right");

    let slid = run(&model, &Request { overflow: Overflow::Slide, ..request(&prompts, 40) });
    assert_eq!(slid.iter().map(|c| c.tokens.len()).collect::<Vec<_>>(), [40, 40]);
    // After 24 positions, the last 12 tokens are reread from position 0.
    let mut window: Vec<u32> = [&prompts[0][..], &slid[0].tokens[..5]].concat()[13..].to_vec();
    for token in &slid[0].tokens[5..10] {
        let next = run(&model, &request(std::slice::from_ref(&window), 1));
        assert_eq!(next[0].tokens, [*token]);
        window.push(*token);
    }
    let long = vec![vec![3; 100]];
    assert_eq!(run(&model, &Request { overflow: Overflow::Slide, ..request(&long, 3) })[0].tokens.len(), 3);
}

#[test]
fn prompts_the_model_cannot_read_are_refused() {
    let model = model();
    let refused = |prompts: Vec<Vec<u32>>| {
        generate(&model, &request(&prompts, 2), |_| ControlFlow::Continue(())).expect_err("not readable")
    };
    assert_eq!(refused(vec![vec![1], vec![]]), GenerateError::EmptyPrompt { index: 1 });
    let unknown = GenerateError::UnknownToken { index: 0, token: 61, vocab_size: 61 };
    assert_eq!(refused(vec![vec![61]]), unknown);
}

#[test]
fn any_number_of_tokens_can_be_requested() {
    let prompts = [vec![1, 2, 3]];
    let endless = Request { overflow: Overflow::Slide, ..request(&prompts, usize::MAX) };
    let mut seen = 0;
    let completions = generate(&model(), &endless, |piece| {
        seen += piece.tokens.len();
        if seen < 40 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!(completions.expect("generates")[0].finish, Finish::Cancelled);
}
