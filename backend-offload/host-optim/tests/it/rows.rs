//! Rows stepped by number have the bits of the whole matrix.

use backend_offload::HostMemory;
use host_optim::{AdamW, Format, HostRows, HostState, Rule, Saved, Sgd, Stride, Values, ValuesMut};

const FORMATS: [Format; 3] = [Format::F32, Format::Bf16Moments, Format::Compact];

fn rules() -> [Rule; 2] {
    [
        AdamW { betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.1 }.into(),
        Sgd { momentum: 0.9, weight_decay: 0.1 }.into(),
    ]
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// A gradient element; some are 0.0 or -0.0.
    fn number(&mut self) -> f32 {
        match self.below(8) {
            0 => -0.0,
            1 => 0.0,
            _ => self.below(2001) as f32 / 1000.0 - 1.0,
        }
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn saved_bits(Saved { time, weights, moments: [first, second] }: &Saved) -> (u32, [Vec<u32>; 3]) {
    (*time, [weights, first, second].map(|numbers| bits(numbers)))
}

struct Twins {
    rows: usize,
    width: usize,
    rule: Rule,
    whole: HostState,
    weights: Vec<f32>,
    by_rows: HostRows,
    random: Random,
}

impl Twins {
    fn new(memory: &HostMemory, format: Format, rule: Rule, [rows, width]: [usize; 2]) -> Self {
        let mut random = Random(7);
        let weights: Vec<f32> = (0..rows * width).map(|_| random.number()).collect();
        let state = || {
            let weights = Values::F32(&weights);
            match rule {
                Rule::AdamW(_) => HostState::new(memory, "wte", format, weights),
                Rule::Sgd(_) => HostState::with_velocity(memory, "wte", format, weights),
            }
        };
        let [whole, by_rows] = [state(), state()].map(|state| state.expect("memory"));
        let by_rows = HostRows::new(by_rows, width).expect("memory");
        Self { rows, width, rule, whole, weights, by_rows, random }
    }

    fn some(&mut self) -> Vec<u32> {
        let mut rows: Vec<u32> =
            (0..=self.random.below(6)).map(|_| self.random.below(self.rows) as u32).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    fn arrive(&mut self) {
        let rows = self.some();
        let share: Vec<f32> = (0..rows.len() * self.width).map(|_| self.random.number()).collect();
        let mut whole = vec![0.0; self.rows * self.width];
        for (row, numbers) in rows.iter().zip(share.chunks(self.width)) {
            whole[*row as usize * self.width..][..self.width].copy_from_slice(numbers);
        }
        self.whole.arrive(Values::F32(&whole)).expect("memory");
        self.by_rows.arrive(&rows, &share).expect("memory");
    }

    fn step(&mut self, time: usize) {
        let squares = [self.whole.squares(), self.by_rows.squares()].map(|squares| squares.expect("memory"));
        assert_eq!(squares[0].to_bits(), squares[1].to_bits(), "the norm of step {time}");
        let stride = Stride { lr: 1e-2 / (1.0 + time as f64), scale: 1.0 / squares[0].sqrt().max(1.0) };
        self.whole.step(self.rule, stride, ValuesMut::F32(&mut self.weights)).expect("it is due");
        self.by_rows.step(self.rule, stride).expect("it is due");
    }

    fn read_alike(&mut self) {
        let rows = self.some();
        let read = self.by_rows.read(&rows).expect("they are there");
        for (row, numbers) in rows.iter().zip(read.chunks(self.width)) {
            let whole = &self.weights[*row as usize * self.width..][..self.width];
            assert_eq!(bits(numbers), bits(whole), "row {row}");
        }
    }

    fn are_alike(&mut self) {
        let weights = Values::F32(&self.weights);
        let whole = self.whole.save(weights).expect("its own weights");
        let by_rows = self.by_rows.whole().save(weights).expect("its own weights");
        assert!(saved_bits(&whole) == saved_bits(&by_rows), "{:?} at {}", self.rule, whole.time);
    }
}

#[test]
fn rows_stepped_when_they_are_named_have_the_bits_of_rows_stepped_in_time() {
    let memory = HostMemory::unlimited();
    for (format, rule) in FORMATS.into_iter().flat_map(|format| rules().map(|rule| (format, rule))) {
        // With turns, more steps than any row may miss.
        for (steps, turns, saves) in [(24, false, 0), (150, true, 0), (24, true, 5)] {
            let mut twins = Twins::new(&memory, format, rule, [97, 24]);
            for time in 0..steps {
                (0..=time % 5).for_each(|_| twins.arrive());
                twins.read_alike();
                if time % 7 == 6 {
                    twins.whole.drop_gradient();
                    twins.by_rows.drop_gradient();
                    continue;
                }
                twins.step(time);
                twins.read_alike();
                if turns {
                    twins.by_rows.catch_up_some();
                }
                if saves > 0 && time % saves == 0 {
                    twins.are_alike();
                }
            }
            twins.are_alike();
        }
    }
    assert_eq!(memory.usage().in_use, 0);
}

#[test]
fn squares_of_rows_have_the_bits_of_the_whole_matrix() {
    let memory = HostMemory::unlimited();
    let rule = rules()[0];
    for shape in [[901, 37], [3, 40_001], [2, 16_384]] {
        let mut twins = Twins::new(&memory, Format::F32, rule, shape);
        for time in 0..12 {
            (0..=time % 3).for_each(|_| twins.arrive());
            twins.step(time);
        }
        twins.are_alike();
    }
}

#[test]
fn a_restored_state_resumes_by_rows_with_offset_share_numbers() {
    let memory = HostMemory::unlimited();
    for format in FORMATS {
        let mut twins = Twins::new(&memory, format, rules()[0], [40, 16]);
        for time in 0..9 {
            twins.arrive();
            twins.step(time);
        }
        let saved = twins.by_rows.whole().save(Values::F32(&twins.weights)).expect("its own weights");
        let restore = || {
            let mut weights = vec![0.0; 40 * 16];
            let mut into = ValuesMut::F32(&mut weights);
            HostState::restore(&memory, "wte", format, &saved, &mut into).expect("memory")
        };
        twins.whole = restore();
        twins.by_rows = HostRows::new(restore(), 16).expect("memory");
        twins.whole.number_shares_from(3);
        twins.by_rows.number_shares_from(3);
        for time in 9..30 {
            (0..3).for_each(|_| twins.arrive());
            twins.step(time);
        }
        twins.are_alike();
    }
}

/// The sum over several ranks does not name rows.
#[test]
fn a_whole_gradient_steps_every_row() {
    let memory = HostMemory::unlimited();
    for rule in rules() {
        let mut twins = Twins::new(&memory, Format::Bf16Moments, rule, [40, 16]);
        for time in 0..12 {
            (0..3).for_each(|_| twins.arrive());
            let whole: Vec<Vec<u32>> = twins
                .whole
                .shares()
                .iter()
                .map(|share| match share {
                    Values::F32(share) => bits(share),
                    Values::Bf16(_) => panic!("it came in f32"),
                })
                .collect();
            let by_rows: Vec<_> = twins.by_rows.shares().iter().map(|share| bits(share)).collect();
            assert_eq!(whole, by_rows);
            if time % 2 == 0 {
                let sum: Vec<f32> = (0..40 * 16).map(|_| twins.random.number()).collect();
                twins.whole.replace_gradient(Values::F32(&sum)).expect("memory");
                twins.by_rows.replace_gradient(&sum).expect("memory");
            }
            twins.step(time);
        }
        twins.are_alike();
    }
}

#[test]
fn missing_or_unordered_rows_are_refused_by_name() {
    let memory = HostMemory::unlimited();
    let mut twins = Twins::new(&memory, Format::F32, rules()[0], [5, 2]);
    for rows in [&[5][..], &[2, 1], &[1, 1]] {
        let message = twins.by_rows.read(rows).expect_err("there are five").to_string();
        assert_eq!(message, "wte: rows are named in ascending order, each once, below 5");
        assert!(twins.by_rows.arrive(rows, &vec![0.0; 2 * rows.len()]).is_err());
    }
    let message = twins.by_rows.arrive(&[1, 2], &[0.0; 3]).expect_err("it is short").to_string();
    assert_eq!(message, "wte: the gradient has 3 elements where its parameter has 4");
    assert!(twins.by_rows.step(twins.rule, Stride { lr: 1.0, scale: 1.0 }).is_err(), "there is no gradient");
    twins.by_rows.arrive(&[1], &[1.0; 2]).expect("memory");
    let other = twins.by_rows.step(rules()[1], Stride { lr: 1.0, scale: 1.0 }).expect_err("another rule");
    assert!(other.to_string().contains("not made for steps of SGD"), "{other}");
}
