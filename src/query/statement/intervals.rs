//! Intervals as PostgreSQL writes and reads them: `'1 day 02:00:00'`, `'1-2'`, `'3 04:05'`, `'2
//! days ago'` and ISO 8601's `'P1DT2H'`. DataFusion knows numbers with units alone, and takes a
//! sign before an interval for that of its first number; so they are written out here.

use arrow::compute::kernels::cast_utils::{
    IntervalParseConfig, IntervalUnit, parse_interval_month_day_nano_config,
};
use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, DateTimeField, Expr, Interval, UnaryOperator, Value,
};

use crate::{Error, Result};

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Rewrites a constant interval with numbers and units, where it has another form.
///
/// # Errors
/// `Query` for a text that is no interval.
pub(super) fn rewrite(expr: &mut Expr) -> Result<()> {
    if let Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } = expr
        && let Expr::Interval(interval) = &**inner
        && let Some(text) = plain_text(interval)
    {
        // The planner puts the sign before the text, where it is that of the first number alone.
        let span = Span::of_engine(&text).or_else(|| parse(&text)).and_then(Span::negated);
        *expr = span.ok_or_else(|| refused(&text))?.written();
        return Ok(());
    }
    let text = match expr {
        Expr::Interval(interval) => match plain_text(interval) {
            Some(text) => Some(text),
            None => text_of_years(interval),
        },
        Expr::Cast { kind, expr: value, data_type: DataType::Interval { .. }, .. } => {
            let Some(text) = text_of(value) else { return Ok(()) };
            // Beneath a cast the engine takes a number alone for one of months.
            match Span::of_engine(&text).or_else(|| parse(&text)) {
                Some(span) => *expr = span.written(),
                None if *kind == CastKind::TryCast || *kind == CastKind::SafeCast => {}
                None => return Err(refused(&text)),
            }
            return Ok(());
        }
        Expr::TypedString(typed) if matches!(typed.data_type, DataType::Interval { .. }) => {
            typed.value.clone().into_string()
        }
        _ => None,
    };
    let Some(text) = text else { return Ok(()) };
    if Span::of_engine(&text).is_some() {
        return Ok(());
    }
    *expr = parse(&text).ok_or_else(|| refused(&text))?.written();
    Ok(())
}

/// The text of an interval `YEAR TO MONTH` that has both, without these fields from now on.
fn text_of_years(interval: &mut Interval) -> Option<String> {
    use DateTimeField::{Month, Months, Year, Years};
    let is_of_both = matches!(interval.leading_field, Some(Year | Years))
        && matches!(interval.last_field, Some(Month | Months))
        && interval.leading_precision.is_none()
        && interval.fractional_seconds_precision.is_none();
    let text = text_of(&interval.value).filter(|_| is_of_both)?;
    years_and_months(text.trim())?;
    (interval.leading_field, interval.last_field) = (None, None);
    Some(text)
}

/// The text of an interval without fields behind it.
fn plain_text(interval: &Interval) -> Option<String> {
    let Interval {
        value,
        leading_field,
        leading_precision,
        last_field,
        fractional_seconds_precision,
    } = interval;
    let is_plain = leading_field.is_none()
        && leading_precision.is_none()
        && last_field.is_none()
        && fractional_seconds_precision.is_none();
    if is_plain { text_of(value) } else { None }
}

fn text_of(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn refused(text: &str) -> Error {
    Error::query(format!(
        "{text:?} is no interval, or one beyond its range; write numbers with units, '1 day 2 hours', a time 'hh:mm:ss' after the days, \
         years and months as '1-2', or ISO 8601, 'P1DT2H'"
    ))
}

/// An interval in the three units that do not add up to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    months: i32,
    days: i32,
    nanoseconds: i64,
}

impl Span {
    /// The interval of a text that the engine reads; a number alone is one of seconds.
    fn of_engine(text: &str) -> Option<Self> {
        let seconds = IntervalParseConfig::new(IntervalUnit::Second);
        let of = parse_interval_month_day_nano_config(text, seconds).ok()?;
        Some(Self { months: of.months, days: of.days, nanoseconds: of.nanoseconds })
    }

    /// The interval in the words of the engine.
    fn written(self) -> Expr {
        let Self { months, days, nanoseconds } = self;
        let text = format!("{months} months {days} days {nanoseconds} nanoseconds");
        Expr::Interval(Interval {
            value: Box::new(Expr::Value(Value::SingleQuotedString(text).into())),
            leading_field: None,
            leading_precision: None,
            last_field: None,
            fractional_seconds_precision: None,
        })
    }

    fn plus(self, other: Self) -> Option<Self> {
        Some(Self {
            months: self.months.checked_add(other.months)?,
            days: self.days.checked_add(other.days)?,
            nanoseconds: self.nanoseconds.checked_add(other.nanoseconds)?,
        })
    }

    fn negated(self) -> Option<Self> {
        Some(Self {
            months: self.months.checked_neg()?,
            days: self.days.checked_neg()?,
            nanoseconds: self.nanoseconds.checked_neg()?,
        })
    }
}

/// The interval of a text; None where it is none.
fn parse(text: &str) -> Option<Span> {
    let text = text.trim();
    if let Some(designators) = text.strip_prefix('P') {
        return iso(designators);
    }
    let mut words: Vec<&str> = text.split_whitespace().collect();
    if words.first() == Some(&"@") {
        words.remove(0);
    }
    let is_ago = words.last().is_some_and(|word| word.eq_ignore_ascii_case("ago"));
    if is_ago {
        words.pop();
    }
    if words.is_empty() {
        return None;
    }
    let mut total = Span::default();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let part = match years_and_months(word) {
            Some(months) => Span { months, ..Span::default() },
            None if word.contains(':') => Span { nanoseconds: time(word)?, ..Span::default() },
            None => {
                let next = words.peek()?;
                match next.contains(':') {
                    // A number before a time is one of days.
                    true => Span { days: word.parse().ok()?, ..Span::default() },
                    false => {
                        // Each unit with its number, as the engine reads them.
                        let unit = words.next()?;
                        Span::of_engine(&format!("{word} {unit}"))?
                    }
                }
            }
        };
        total = total.plus(part)?;
    }
    if is_ago { total.negated() } else { Some(total) }
}

/// The sign of a number, and the text behind it.
fn signed(text: &str) -> (i64, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// A number of digits alone.
fn digits(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// `[-]years-months` as months.
fn years_and_months(text: &str) -> Option<i32> {
    let (sign, rest) = signed(text);
    let (years, months) = rest.split_once('-')?;
    let (years, months) = (digits(years)?, digits(months).filter(|months| *months < 12)?);
    i32::try_from(sign * years.checked_mul(12)?.checked_add(months)?).ok()
}

/// `[-]hours:minutes[:seconds]` in nanoseconds.
fn time(text: &str) -> Option<i64> {
    let (sign, rest) = signed(text);
    let mut parts = rest.split(':');
    let hours = digits(parts.next()?)?;
    let minutes = digits(parts.next()?).filter(|minutes| *minutes < 60)?;
    let seconds = match parts.next() {
        None => 0,
        Some(seconds) => seconds_of(seconds).filter(|found| *found < MINUTE)?,
    };
    if parts.next().is_some() {
        return None;
    }
    let whole = hours.checked_mul(HOUR)?.checked_add(minutes * MINUTE)?;
    Some(sign * whole.checked_add(seconds)?)
}

/// `seconds[.fraction]` in nanoseconds, of at most nine digits.
fn seconds_of(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= 9)?;
    let fraction = digits(fraction)? * 10_i64.pow(9 - places);
    digits(whole)?.checked_mul(SECOND)?.checked_add(fraction)
}

/// Parses the text after the `P` of an ISO 8601 duration.
fn iso(text: &str) -> Option<Span> {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) if !time.is_empty() => (date, time),
        Some(_) => return None,
        None => (text, ""),
    };
    if date.is_empty() && time.is_empty() {
        return None;
    }
    let mut total = Span::default();
    for (number, unit) in designators(date)? {
        let whole = |factor: i64| {
            let (sign, rest) = signed(number);
            i32::try_from(sign * digits(rest)?.checked_mul(factor)?).ok()
        };
        total = total.plus(match unit {
            'Y' => Span { months: whole(12)?, ..Span::default() },
            'M' => Span { months: whole(1)?, ..Span::default() },
            'W' => Span { days: whole(7)?, ..Span::default() },
            'D' => Span { days: whole(1)?, ..Span::default() },
            _ => return None,
        })?;
    }
    for (number, unit) in designators(time)? {
        let (sign, rest) = signed(number);
        let nanoseconds = match unit {
            'H' => digits(rest)?.checked_mul(HOUR)?,
            'M' => digits(rest)?.checked_mul(MINUTE)?,
            'S' => seconds_of(rest)?,
            _ => return None,
        };
        total = total.plus(Span { nanoseconds: sign * nanoseconds, ..Span::default() })?;
    }
    Some(total)
}

/// Numbers, each with the letter behind it.
fn designators(text: &str) -> Option<Vec<(&str, char)>> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| letter.is_ascii_alphabetic())?;
        let unit = rest[end..].chars().next()?;
        found.push((&rest[..end], unit));
        rest = &rest[end + 1..];
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_postgresql_are_read() {
        let span = |months, days, nanoseconds| Some(Span { months, days, nanoseconds });
        for (text, found) in [
            ("1 day 02:00:00", span(0, 1, 2 * HOUR)),
            ("1 day -02:00", span(0, 1, -2 * HOUR)),
            ("-1 day -02:00:01.5", span(0, -1, -2 * HOUR - SECOND - SECOND / 2)),
            ("02:00", span(0, 0, 2 * HOUR)),
            ("3 04:05:06", span(0, 3, 4 * HOUR + 5 * MINUTE + 6 * SECOND)),
            ("1-2", span(14, 0, 0)),
            ("-1-2", span(-14, 0, 0)),
            ("1-2 3 4:05", span(14, 3, 4 * HOUR + 5 * MINUTE)),
            ("@ 1 day 2 hours ago", span(0, -1, -2 * HOUR)),
            ("1 day 02:00:00 3 months", span(3, 1, 2 * HOUR)),
            ("P1DT2H", span(0, 1, 2 * HOUR)),
            ("P1Y2M3W4DT5H6M7.5S", span(14, 25, 5 * HOUR + 6 * MINUTE + 7 * SECOND + SECOND / 2)),
            ("P-1Y", span(-12, 0, 0)),
            ("PT-0.5S", span(0, 0, -SECOND / 2)),
        ] {
            assert_eq!(parse(text), found, "{text}");
        }
        for text in [
            "",
            "ago",
            "@",
            "25:61",
            "1:2:3:4",
            "1-12",
            "P",
            "PT",
            "P1H",
            "PT1D",
            "1 day 1",
            "one day",
            "1::2",
            ":1",
            "P1",
            "1--2",
            "02:00:00.1234567891",
            "99999999999-1",
            "999999999:00",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
