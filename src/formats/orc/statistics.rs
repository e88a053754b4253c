//! Which stripes may hold a row that a predicate keeps, by the statistics of the file's `Metadata`
//! section.
//!
//! Only statistics that are right in every file are used: minima and maxima of integers, dates and
//! strings, and numbers of values. Statistics of floats are wrong if there are NaNs, those of
//! timestamps depend on the writer's time zone, and those of decimals are text.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::scalar::ScalarValue;
use orc_rust::schema::DataType as OrcType;

use super::footer::OrcFooter;
use super::wire::fields;
use crate::Result;
use crate::bounds::ORC_PARTS;
use crate::prune::{Bounds, ColumnBounds, judge};

/// By stripe, whether a row that the predicate (over the file's own plain schema) keeps may be
/// there.
///
/// # Errors
/// `Data` where the statistics are damaged.
pub fn kept_stripes(footer: &OrcFooter, predicate: &Arc<dyn PhysicalExpr>) -> Result<Vec<bool>> {
    let physical = footer.plain_schema();
    let names: HashSet<String> =
        collect_columns(predicate).iter().map(|column| column.name().to_owned()).collect();
    Ok(match Statistics::read(footer, &physical, &names)? {
        Some(statistics) => judge(predicate, &statistics).none.iter().map(|none| !none).collect(),
        None => vec![true; footer.stripes().len()],
    })
}

/// Statistics of root columns, a value per stripe.
struct Statistics {
    rows: Vec<u64>,
    columns: Vec<ColumnStatistics>,
}

struct ColumnStatistics {
    name: String,
    /// The number of the column's type: its place among a stripe's statistics.
    number: usize,
    kind: Kind,
    data_type: DataType,
    minima: Vec<ScalarValue>,
    maxima: Vec<ScalarValue>,
    nulls: Vec<Option<u64>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Date,
    Text,
    /// Only its number of values is used.
    Other,
}

impl Kind {
    /// The field of `ColumnStatistics` that holds minimum and maximum.
    fn field(self) -> Option<u64> {
        match self {
            Self::Integer => Some(2),
            Self::Text => Some(4),
            Self::Date => Some(7),
            Self::Other => None,
        }
    }
}

impl Statistics {
    /// None where the file has no statistics of its stripes.
    fn read(
        footer: &OrcFooter,
        physical: &Schema,
        names: &HashSet<String>,
    ) -> Result<Option<Self>> {
        let mut columns: Vec<ColumnStatistics> = Vec::new();
        for (column, field) in footer.root().children().iter().zip(physical.fields()) {
            if !names.contains(column.name()) {
                continue;
            }
            let kind = match column.data_type() {
                OrcType::Byte { .. }
                | OrcType::Short { .. }
                | OrcType::Int { .. }
                | OrcType::Long { .. } => Kind::Integer,
                OrcType::Date { .. } => Kind::Date,
                OrcType::String { .. } => Kind::Text,
                _ => Kind::Other,
            };
            columns.push(ColumnStatistics {
                name: column.name().to_owned(),
                number: column.data_type().column_index(),
                kind,
                data_type: field.data_type().clone(),
                minima: Vec::new(),
                maxima: Vec::new(),
                nulls: Vec::new(),
            });
        }
        let rows: Vec<u64> = footer.stripes().iter().map(|stripe| stripe.rows).collect();
        let section = footer.statistics()?;
        let mut stripe = 0;
        for field in fields(&section) {
            if let (1, message) = field? {
                let Some(rows) = rows.get(stripe) else { return Ok(None) };
                read_stripe(message.bytes()?, *rows, &mut columns)?;
                stripe += 1;
            }
        }
        Ok((stripe == rows.len()).then_some(Self { rows, columns }))
    }
}

/// Adds the statistics of one stripe to each column.
fn read_stripe(message: &[u8], rows: u64, columns: &mut [ColumnStatistics]) -> Result<()> {
    let mut of_types = Vec::new();
    for field in fields(message) {
        if let (1, statistics) = field? {
            of_types.push(statistics.bytes()?);
            ORC_PARTS.check(of_types.len() as u64, "the statistics of a stripe have")?;
        }
    }
    for column in columns {
        let message = of_types.get(column.number).copied().unwrap_or_default();
        column.push(message, rows)?;
    }
    Ok(())
}

impl ColumnStatistics {
    fn push(&mut self, message: &[u8], rows: u64) -> Result<()> {
        let (mut values, mut has_null) = (None, None);
        let (mut minimum, mut maximum) = (None, None);
        for field in fields(message) {
            match field? {
                (1, number) => values = Some(number.number()?),
                (10, flag) => has_null = Some(flag.number()? != 0),
                (number, bounds) if Some(number) == self.kind.field() => {
                    (minimum, maximum) = self.bounds(bounds.bytes()?)?;
                }
                _ => {}
            }
        }
        // Without values there are no bounds, whatever is written.
        let some = values.is_some_and(|values| values > 0);
        let unknown = || ScalarValue::try_from(&self.data_type);
        let bound = |value: Option<ScalarValue>| match value.filter(|_| some) {
            Some(value) => Ok(value),
            None => unknown(),
        };
        let (minimum, maximum) = (bound(minimum)?, bound(maximum)?);
        self.minima.push(minimum);
        self.maxima.push(maximum);
        let nulls = values.and_then(|values| rows.checked_sub(values));
        // A writer that says that there are nulls and that there are none is not believed.
        self.nulls.push(nulls.filter(|nulls| has_null == Some(*nulls > 0)));
        Ok(())
    }

    fn bounds(&self, message: &[u8]) -> Result<(Option<ScalarValue>, Option<ScalarValue>)> {
        let (mut minimum, mut maximum) = (None, None);
        for field in fields(message) {
            let (number, value) = field?;
            match (number, self.kind) {
                (1, Kind::Integer | Kind::Date) => minimum = self.integer(value.signed()?),
                (2, Kind::Integer | Kind::Date) => maximum = self.integer(value.signed()?),
                // Long strings have bounds (4 and 5) in place of minimum and maximum.
                (1 | 4, Kind::Text) => minimum = Some(ScalarValue::from(value.text()?)),
                (2 | 5, Kind::Text) => maximum = Some(ScalarValue::from(value.text()?)),
                _ => {}
            }
        }
        Ok((minimum, maximum))
    }

    /// None for a number that is not of the column's type.
    fn integer(&self, number: i64) -> Option<ScalarValue> {
        match self.data_type {
            DataType::Int8 => Some(ScalarValue::from(i8::try_from(number).ok()?)),
            DataType::Int16 => Some(ScalarValue::from(i16::try_from(number).ok()?)),
            DataType::Int32 => Some(ScalarValue::from(i32::try_from(number).ok()?)),
            DataType::Int64 => Some(ScalarValue::from(number)),
            DataType::Date32 => Some(ScalarValue::Date32(Some(i32::try_from(number).ok()?))),
            _ => None,
        }
    }
}

/// Stripes as containers.
impl Bounds for Statistics {
    fn containers(&self) -> usize {
        self.rows.len()
    }

    fn column(&self, column: &Column) -> Option<ColumnBounds> {
        let known = self.columns.iter().find(|known| known.name == column.name())?;
        let bounds = ColumnBounds::unknown(&known.data_type, self.rows.len());
        let bounds = bounds.with_nulls(&known.nulls, &self.rows);
        let array = |values: &[ScalarValue]| ScalarValue::iter_to_array(values.iter().cloned());
        Some(match (array(&known.minima), array(&known.maxima)) {
            (Ok(lower), Ok(upper)) => bounds.with_extremes(&lower, &upper),
            _ => bounds,
        })
    }
}
