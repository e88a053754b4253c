//! Statistics of the log as bounds of files. They are written by many programs: cut, rounded and
//! wide. A value that may not bound its column is taken as unknown.
//! Format: <https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics>.

use std::collections::HashMap;
use std::fmt;

use arrow::datatypes::{DataType, TimeUnit};
use chrono::DateTime;
use datafusion::scalar::ScalarValue;
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::partition_values::{clock, days};
use super::schema::{Column, Kind};

/// Times are cut to milliseconds: a greatest value may be this many microseconds later.
const CUT_MICROS: i64 = 999;

/// Digits of a decimal that a 64-bit float holds exactly.
const FLOAT_DIGITS: u8 = 15;

/// The statistics of a file, of the columns that somebody asked for.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Rows stored in the file, deleted ones included.
    pub num_records: Option<u64>,
    /// Whether bounds and counts are of the rows that are not deleted.
    pub tight_bounds: Option<bool>,
    columns: Vec<Stated>,
}

/// What statistics say of one column.
#[derive(Clone, Debug, Default)]
struct Stated {
    least: Option<Value>,
    greatest: Option<Value>,
    nulls: Option<u64>,
}

/// The columns whose statistics are asked for: others of a table may be thousands.
#[derive(Debug, Default)]
pub struct Asked<'a> {
    places: HashMap<&'a str, usize>,
    columns: usize,
}

impl<'a> Asked<'a> {
    /// For those of these columns that can have bounds.
    pub fn of(columns: &'a [Column]) -> Self {
        let has_bounds = |column: &Column| matches!(column.kind, Kind::Primitive(_));
        let places = columns.iter().enumerate().filter(|(_, column)| has_bounds(column));
        let places = places.map(|(place, column)| (column.physical.as_str(), place)).collect();
        Self { places, columns: columns.len() }
    }
}

impl Stats {
    /// Parses the text in the log. Statistics are there to help: those that cannot be read do not.
    pub fn parse(text: &str, asked: &Asked<'_>) -> Self {
        let mut parser = serde_json::Deserializer::from_str(text);
        let parsed = WholeStats(asked).deserialize(&mut parser);
        parsed.and_then(|stats| parser.end().map(|()| stats)).unwrap_or_default()
    }

    /// A bound that no value of a column is below, NaN aside. The column is at this place of those
    /// that were asked for.
    pub fn lower(&self, place: usize, column: &Column) -> Option<ScalarValue> {
        let Kind::Primitive(data_type) = &column.kind else { return None };
        bound(self.columns.get(place)?.least.as_ref()?, data_type, column, true)
    }

    /// A bound that no value of a column is above, NaN aside.
    pub fn upper(&self, place: usize, column: &Column) -> Option<ScalarValue> {
        let Kind::Primitive(data_type) = &column.kind else { return None };
        bound(self.columns.get(place)?.greatest.as_ref()?, data_type, column, false)
    }

    /// How many values of a column are null.
    pub fn nulls(&self, place: usize) -> Option<u64> {
        // Of rows that a deletion vector takes out, too: only none and all say something of the
        // others.
        self.columns.get(place)?.nulls.filter(|nulls| {
            self.tight_bounds != Some(false) || *nulls == 0 || Some(*nulls) == self.num_records
        })
    }
}

/// Reads the statistics of a file, and passes over columns that nobody asked for.
struct WholeStats<'a>(&'a Asked<'a>);

impl<'de> DeserializeSeed<'de> for WholeStats<'_> {
    type Value = Stats;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<Stats, D::Error> {
        parser.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WholeStats<'_> {
    type Value = Stats;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the statistics of a file")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Stats, A::Error> {
        let columns = vec![Stated::default(); self.0.columns];
        let mut stats = Stats { columns, ..Stats::default() };
        while let Some(fact) = map.next_key_seed(Named(Fact::of))? {
            let columns = &mut stats.columns;
            match fact {
                Fact::Records => stats.num_records = map.next_value()?,
                Fact::TightBounds => stats.tight_bounds = map.next_value()?,
                Fact::Least => {
                    map.next_value_seed(ByColumn(self.0, |place: usize, json: Value| {
                        columns[place].least = Some(json);
                    }))?
                }
                Fact::Greatest => {
                    map.next_value_seed(ByColumn(self.0, |place: usize, json: Value| {
                        columns[place].greatest = Some(json);
                    }))?
                }
                Fact::Nulls => {
                    map.next_value_seed(ByColumn(self.0, |place: usize, json: Value| {
                        columns[place].nulls = json.as_u64();
                    }))?
                }
                Fact::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(stats)
    }
}

/// What a name in statistics says.
enum Fact {
    Records,
    TightBounds,
    Least,
    Greatest,
    Nulls,
    Other,
}

impl Fact {
    fn of(name: &str) -> Self {
        match name {
            "numRecords" => Self::Records,
            "tightBounds" => Self::TightBounds,
            "minValues" => Self::Least,
            "maxValues" => Self::Greatest,
            "nullCount" => Self::Nulls,
            _ => Self::Other,
        }
    }
}

/// Reads a name, of which a function makes something: a text of its own for each name of each file
/// would cost more than the numbers.
struct Named<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Named<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<T, D::Error> {
        parser.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Named<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<T, E> {
        Ok((self.0)(name))
    }
}

/// Reads an object with a value by column, and gives those that were asked for to a function.
struct ByColumn<'a, F>(&'a Asked<'a>, F);

impl<'de, F: FnMut(usize, Value)> DeserializeSeed<'de> for ByColumn<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<(), D::Error> {
        parser.deserialize_map(self)
    }
}

impl<'de, F: FnMut(usize, Value)> Visitor<'de> for ByColumn<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("values by column")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let places = &self.0.places;
        while let Some(place) = map.next_key_seed(Named(|name: &str| places.get(name).copied()))? {
            match place {
                Some(place) => (self.1)(place, map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// A least or greatest value as a bound of the column's type; None where it may be none.
fn bound(
    json: &Value,
    data_type: &DataType,
    column: &Column,
    is_lower: bool,
) -> Option<ScalarValue> {
    Some(match data_type {
        DataType::Int8 => ScalarValue::Int8(Some(i8::try_from(json.as_i64()?).ok()?)),
        DataType::Int16 => ScalarValue::Int16(Some(i16::try_from(json.as_i64()?).ok()?)),
        DataType::Int32 => ScalarValue::Int32(Some(i32::try_from(json.as_i64()?).ok()?)),
        DataType::Int64 => ScalarValue::Int64(Some(json.as_i64()?)),
        DataType::Float32 => {
            let near = json.as_f64()? as f32;
            let near = if is_lower { near.next_down() } else { near.next_up() };
            ScalarValue::Float32(near.is_finite().then_some(near))
        }
        // The text of a 32-bit float is not its value as a 64-bit one.
        DataType::Float64 if column.former.iter().any(|former| former == "float") => return None,
        DataType::Float64 => {
            // JSON numbers are read to within a unit of their last place.
            let near = json.as_f64()?;
            let near =
                if is_lower { near.next_down().next_down() } else { near.next_up().next_up() };
            ScalarValue::Float64(near.is_finite().then_some(near))
        }
        DataType::Utf8 => ScalarValue::Utf8(Some(json.as_str()?.to_owned())),
        DataType::Date32 => ScalarValue::Date32(Some(days(json.as_str()?)?)),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let text = json.as_str()?;
            let micros = match zone {
                // Without an offset it would be of a zone that nobody here knows.
                Some(_) => DateTime::parse_from_rfc3339(text).ok()?.timestamp_micros(),
                None => clock(text)?,
            };
            let micros = if is_lower { micros } else { micros.checked_add(CUT_MICROS)? };
            ScalarValue::TimestampMicrosecond(Some(micros), zone.clone())
        }
        DataType::Decimal128(precision, scale) => ScalarValue::Decimal128(
            Some(decimal(json, *precision, *scale, is_lower)?),
            *precision,
            *scale,
        ),
        _ => return None,
    })
    .filter(|value| !value.is_null())
}

/// A bound of a decimal column. Writers have decimals as JSON numbers, which are read as floats.
fn decimal(json: &Value, precision: u8, scale: i8, is_lower: bool) -> Option<i128> {
    if precision > FLOAT_DIGITS {
        return None;
    }
    let number = match json {
        Value::String(text) => text.parse().ok()?,
        other => other.as_f64()?,
    };
    let scaled = number * 10_f64.powi(i32::from(scale));
    // A unit of the last digit is more than the error of reading and scaling.
    let near = if is_lower { scaled.round() - 1.0 } else { scaled.round() + 1.0 };
    near.is_finite().then_some(near as i128)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(data_type: DataType, former: &[&str]) -> Column {
        Column {
            name: "logical".to_owned(),
            physical: "c".to_owned(),
            id: None,
            is_nullable: true,
            kind: Kind::Primitive(data_type),
            former: former.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[derive(Debug, Default, PartialEq)]
    struct Proven {
        lower: Option<ScalarValue>,
        upper: Option<ScalarValue>,
        nulls: Option<u64>,
    }

    fn proven_of(stats: &Stats, place: usize, column: &Column) -> Proven {
        let (lower, upper) = (stats.lower(place, column), stats.upper(place, column));
        Proven { lower, upper, nulls: stats.nulls(place) }
    }

    fn proven(least: &str, greatest: &str, column: &Column) -> Proven {
        let text = format!(
            r#"{{"numRecords":9,"minValues":{{"c":{least}}},"maxValues":{{"c":{greatest}}},"nullCount":{{"c":2}}}}"#
        );
        proven_of(&Stats::parse(&text, &Asked::of(std::slice::from_ref(column))), 0, column)
    }

    #[test]
    fn bounds_hold_for_what_writers_cut_and_round() {
        let long = column(DataType::Int64, &[]);
        let exact = proven("-9007199254740993", "9007199254740993", &long);
        assert_eq!(exact.lower, Some(ScalarValue::Int64(Some(-9_007_199_254_740_993))));
        assert_eq!(exact.nulls, Some(2));
        let zone = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let time = proven(
            r#""1970-01-01T00:00:00.001Z""#,
            r#""1970-01-01T00:00:00.001Z""#,
            &column(zone, &[]),
        );
        assert_eq!(
            time.lower,
            Some(ScalarValue::TimestampMicrosecond(Some(1000), Some("UTC".into())))
        );
        assert_eq!(
            time.upper,
            Some(ScalarValue::TimestampMicrosecond(Some(1999), Some("UTC".into())))
        );
        // The greatest 32-bit float that is written as 0.1 is more than 0.1.
        let float = proven("0.1", "0.1", &column(DataType::Float32, &[]));
        assert!(matches!(float.upper, Some(ScalarValue::Float32(Some(upper))) if upper > 0.1));
        let widened = proven("0.1", "0.1", &column(DataType::Float64, &["float"]));
        assert_eq!((widened.lower, widened.upper), (None, None));
        let number = column(DataType::Decimal128(10, 2), &[]);
        let decimal = proven("1.25", "1.25", &number);
        assert_eq!(decimal.lower, Some(ScalarValue::Decimal128(Some(124), 10, 2)));
        assert_eq!(decimal.upper, Some(ScalarValue::Decimal128(Some(126), 10, 2)));
        assert_eq!(proven("1.25", "1.25", &column(DataType::Decimal128(38, 2), &[])).lower, None);
        assert_eq!(proven(r#""NaN""#, r#""NaN""#, &column(DataType::Float64, &[])).upper, None);
        assert_eq!(proven("300", "300", &column(DataType::Int8, &[])).lower, None);
    }

    #[test]
    fn counts_of_nulls_under_deletion_vectors_say_none_or_all() {
        let of = |nulls: u64| {
            let text =
                format!(r#"{{"numRecords":9,"tightBounds":false,"nullCount":{{"c":{nulls}}}}}"#);
            let column = column(DataType::Int64, &[]);
            Stats::parse(&text, &Asked::of(std::slice::from_ref(&column))).nulls(0)
        };
        assert_eq!([of(0), of(3), of(9)], [Some(0), None, Some(9)]);
        assert_eq!(Stats::parse("{broken", &Asked::default()).num_records, None);
    }

    #[test]
    fn columns_that_nobody_asked_for_are_passed_over_and_one_fault_leaves_nothing() {
        let text = r#"{"numRecords":9,"minValues":{"s":{"c":[1]},"c":1,"d":"x"},"other":[{}],"maxValues":{"c":7},
            "nullCount":{"s":{"c":3},"c":0}}"#;
        let long = column(DataType::Int64, &[]);
        let columns = [Column { physical: "d".to_owned(), ..long.clone() }, long.clone()];
        let asked = Asked::of(&columns);
        let stats = Stats::parse(text, &asked);
        let found = proven_of(&stats, 1, &long);
        assert_eq!(found.lower, Some(ScalarValue::Int64(Some(1))));
        assert_eq!(found.upper, Some(ScalarValue::Int64(Some(7))));
        assert_eq!((found.nulls, stats.num_records), (Some(0), Some(9)));
        assert_eq!(proven_of(&stats, 0, &long), Proven::default());
        for broken in [format!("{text}x"), text.replace("[1]", "[1")] {
            assert_eq!(Stats::parse(&broken, &asked).num_records, None);
        }
    }
}
