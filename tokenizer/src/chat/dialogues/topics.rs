//! Topics of dialogues. `{0}` and `{1}` stand for drawn words.

use super::Draws;

pub(super) struct Topic {
    pub(super) training: &'static [&'static str],
    pub(super) held_out: &'static [&'static str],
    /// Frequency in training, about the square root of the number of questions.
    pub(super) share: usize,
    /// A question's words, and its answer.
    pub(super) draw: fn(&mut Draws) -> (Vec<String>, String),
}

pub(super) const TOPICS: &[&Topic] = &[
    &GREETING,
    &SUM,
    &DAY_AFTER,
    &DAY_BEFORE,
    &MONTH_AFTER,
    &MONTH_BEFORE,
    &OPPOSITE,
    &COUNT,
    &COLOUR,
    &LEGS,
    &SOUND,
    &PARTS,
];

const GREETING: Topic = Topic {
    training: &["hello!", "hi there!", "good morning!", "hey!", "nice to meet you.", "hello, how are you?"],
    held_out: &["hi, hello!", "good morning to you!", "hey there, how are you?"],
    share: 1,
    draw: |_| (Vec::new(), "hello! How can I help you?".to_owned()),
};

const SUM: Topic = Topic {
    training: &[
        "what is {0} plus {1}?",
        "how much is {0} + {1}?",
        "add {0} and {1}.",
        "{0} + {1} = ?",
        "tell me the sum of {0} and {1}.",
        "please add {0} to {1}.",
        "what do you get for {0} + {1}?",
        "{0} plus {1} is what?",
    ],
    held_out: &["what do {0} and {1} make together?", "can you work out {0} plus {1} for me?"],
    share: 8,
    draw: |draws| {
        let (left, right) = (draws.below(10), draws.below(10));
        (vec![left.to_string(), right.to_string()], format!("{left} plus {right} is {}.", left + right))
    },
};

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

const DAY_AFTER: Topic = Topic {
    training: &[
        "what day comes after {0}?",
        "which day follows {0}?",
        "today is {0}. What day is tomorrow?",
        "what is the day after {0}?",
        "tell me the day that follows {0}.",
        "which day is right after {0}?",
    ],
    held_out: &["if it is {0} now, what day is next?", "{0} is over. Which day begins?"],
    share: 2,
    draw: |draws| neighbour(draws, &DAYS, 1, "comes after"),
};

const DAY_BEFORE: Topic = Topic {
    training: &[
        "what day comes before {0}?",
        "which day is right before {0}?",
        "today is {0}. What day was yesterday?",
        "what is the day before {0}?",
        "tell me the day that precedes {0}.",
        "which day comes before {0}?",
    ],
    held_out: &["if it is {0} now, what day has just passed?", "which day ends when {0} begins?"],
    share: 2,
    draw: |draws| neighbour(draws, &DAYS, DAYS.len() - 1, "comes before"),
};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const MONTH_AFTER: Topic = Topic {
    training: &[
        "what month comes after {0}?",
        "which month follows {0}?",
        "it is {0}. What is the next month?",
        "what is the month after {0}?",
        "tell me the month that follows {0}.",
        "which month is right after {0}?",
    ],
    held_out: &["when {0} ends, which month begins?", "name the month that comes next after {0}."],
    share: 3,
    draw: |draws| neighbour(draws, &MONTHS, 1, "comes after"),
};

const MONTH_BEFORE: Topic = Topic {
    training: &[
        "what month comes before {0}?",
        "which month is right before {0}?",
        "it is {0}. What was the last month?",
        "what is the month before {0}?",
        "tell me the month that precedes {0}.",
        "which month comes before {0}?",
    ],
    held_out: &["which month ends when {0} begins?", "name the month that comes just before {0}."],
    share: 3,
    draw: |draws| neighbour(draws, &MONTHS, MONTHS.len() - 1, "comes before"),
};

fn neighbour(draws: &mut Draws, ring: &[&str], step: usize, relation: &str) -> (Vec<String>, String) {
    let at = draws.below(ring.len());
    let (asked, answer) = (ring[at], ring[(at + step) % ring.len()]);
    (vec![asked.to_owned()], format!("{answer} {relation} {asked}."))
}

const OPPOSITES: [(&str, &str); 16] = [
    ("big", "small"),
    ("hot", "cold"),
    ("fast", "slow"),
    ("up", "down"),
    ("old", "young"),
    ("wet", "dry"),
    ("happy", "sad"),
    ("open", "closed"),
    ("light", "dark"),
    ("full", "empty"),
    ("near", "far"),
    ("early", "late"),
    ("soft", "hard"),
    ("loud", "quiet"),
    ("clean", "dirty"),
    ("thick", "thin"),
];

const OPPOSITE: Topic = Topic {
    training: &[
        "what is the opposite of {0}?",
        "which word means the opposite of {0}?",
        "give me the opposite of {0}.",
        "tell me the opposite of {0}.",
        "{0} is the opposite of what?",
        "say what is the opposite of {0}.",
    ],
    held_out: &["if it is not {0} at all, what is it?", "do you know the opposite of the word {0}?"],
    share: 4,
    draw: |draws| {
        let (one, other) = *draws.pick(&OPPOSITES);
        let (asked, answer) = if draws.below(2) == 0 { (one, other) } else { (other, one) };
        (vec![asked.to_owned()], format!("the opposite of {asked} is {answer}."))
    },
};

const COUNT: Topic = Topic {
    training: &[
        "count from {0} to {1}.",
        "please count from {0} up to {1}.",
        "say the numbers from {0} to {1}.",
        "list the numbers from {0} to {1}.",
        "count up from {0} to {1}.",
        "which numbers go from {0} to {1}?",
    ],
    held_out: &["which numbers lead from {0} to {1}?", "begin at {0} and count until {1}."],
    share: 5,
    draw: |draws| {
        let first = draws.below(10);
        let last = first + 2 + draws.below(5);
        let numbers: Vec<String> = (first..=last).map(|number| number.to_string()).collect();
        (vec![first.to_string(), last.to_string()], format!("{}.", numbers.join(", ")))
    },
};

const COLOURS: [(&str, &str); 14] = [
    ("grass", "green"),
    ("the sky", "blue"),
    ("snow", "white"),
    ("coal", "black"),
    ("blood", "red"),
    ("a lemon", "yellow"),
    ("a carrot", "orange"),
    ("milk", "white"),
    ("a ripe tomato", "red"),
    ("a frog", "green"),
    ("the night", "black"),
    ("a banana", "yellow"),
    ("chocolate", "brown"),
    ("an elephant", "grey"),
];

const COLOUR: Topic = Topic {
    training: &[
        "what colour is {0}?",
        "which colour does {0} have?",
        "tell me the colour of {0}.",
        "what is the colour of {0}?",
        "say what colour {0} is.",
        "do you know the colour of {0}?",
    ],
    held_out: &["what colour would you paint {0}?", "how would you describe the colour of {0}?"],
    share: 3,
    draw: |draws| pair(draws, &COLOURS, |thing, colour| format!("{thing} is {colour}.")),
};

const LEGS_OF: [(&str, &str); 10] = [
    ("a dog", "four"),
    ("a bird", "two"),
    ("a spider", "eight"),
    ("an ant", "six"),
    ("a horse", "four"),
    ("a bee", "six"),
    ("a snake", "no"),
    ("a fish", "no"),
    ("a person", "two"),
    ("a crab", "ten"),
];

const LEGS: Topic = Topic {
    training: &[
        "how many legs does {0} have?",
        "what number of legs does {0} have?",
        "count the legs of {0}.",
        "tell me how many legs {0} has.",
        "what is the number of legs of {0}?",
        "say how many legs {0} has.",
    ],
    held_out: &["on how many legs does {0} go?", "do you know how many legs {0} has?"],
    share: 2,
    draw: |draws| pair(draws, &LEGS_OF, |animal, legs| format!("{animal} has {legs} legs.")),
};

const SOUNDS: [(&str, &str); 10] = [
    ("a cat", "meow"),
    ("a dog", "woof"),
    ("a cow", "moo"),
    ("a duck", "quack"),
    ("a sheep", "baa"),
    ("a pig", "oink"),
    ("a bee", "buzz"),
    ("a snake", "hiss"),
    ("an owl", "hoo"),
    ("a mouse", "squeak"),
];

const SOUND: Topic = Topic {
    training: &[
        "what does {0} say?",
        "which sound does {0} make?",
        "how does {0} sound?",
        "tell me what {0} says.",
        "what is the sound of {0}?",
        "say which sound {0} makes.",
    ],
    held_out: &["what do you hear from {0}?", "can you speak like {0}?"],
    share: 2,
    draw: |draws| pair(draws, &SOUNDS, |animal, sound| format!("{animal} says {sound}.")),
};

const PARTS_OF: [(&str, &str); 8] = [
    ("days are in a week", "seven days in a week"),
    ("months are in a year", "twelve months in a year"),
    ("hours are in a day", "24 hours in a day"),
    ("minutes are in an hour", "60 minutes in an hour"),
    ("seconds are in a minute", "60 seconds in a minute"),
    ("seasons are in a year", "four seasons in a year"),
    ("fingers are on a hand", "five fingers on a hand"),
    ("sides are on a triangle", "three sides on a triangle"),
];

const PARTS: Topic = Topic {
    training: &[
        "how many {0}?",
        "please tell me how many {0}.",
        "do you know how many {0}?",
        "tell me how many {0}.",
        "say how many {0}.",
        "can you tell me how many {0}?",
    ],
    held_out: &["I forgot how many {0}.", "quick question: how many {0}?"],
    share: 2,
    draw: |draws| pair(draws, &PARTS_OF, |_, parts| format!("there are {parts}.")),
};

fn pair(
    draws: &mut Draws,
    known: &[(&str, &str)],
    answer: impl Fn(&str, &str) -> String,
) -> (Vec<String>, String) {
    let (asked, value) = *draws.pick(known);
    (vec![asked.to_owned()], answer(asked, value))
}
