//! Formats numbers for people.

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

pub(crate) fn date(seconds: u64) -> String {
    // Years start in March: a leap day ends a year. Eras of 400 years are equal.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        let days = |days: u64| date(days * 86_400 + 86_399);
        assert_eq!(
            [0, 58, 59, 364, 365].map(days),
            ["1970-01-01", "1970-02-28", "1970-03-01", "1970-12-31", "1971-01-01"]
        );
        assert_eq!([11_016, 11_017, 20_783].map(days), ["2000-02-29", "2000-03-01", "2026-11-26"]);
        assert_eq!([47_540, 47_541].map(days), ["2100-02-28", "2100-03-01"]);
    }
}
