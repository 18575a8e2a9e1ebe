//! Numbers as people read them.

/// A number with a comma every three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..1 if seconds < 0.01 => format!("{:.2} ms", seconds * 1e3),
        0..1 => format!("{:.0} ms", seconds * 1e3),
        1..10 => format!("{seconds:.1} s"),
        10..120 => format!("{whole} s"),
        120..7200 => format!("{} min", whole.div_ceil(60)),
        7200..172_800 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Three digits and a decimal prefix.
pub(crate) fn si(value: f64, unit: &str) -> String {
    let mut value = value;
    let mut prefixes = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"].iter();
    let mut prefix = prefixes.next().unwrap_or(&"");
    while value >= 999.5
        && let Some(next) = prefixes.next()
    {
        value /= 1000.0;
        prefix = next;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {prefix}{unit}")
}
