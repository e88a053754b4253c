//! Row groups of which statistics prove that a predicate keeps every row: they are counted without
//! being read.
//!
//! Pruning asks whether no row can pass, and may answer "perhaps" for anything. Here a wrong "all of
//! them" would be a wrong count, so the proof knows a few forms of predicates and fails closed: `AND`,
//! `OR` and `NOT` over comparisons of one column with constants. Columns must hold no null in the row
//! group, which leaves a comparison true or false, and must not be floats: NaN is in no minimum or
//! maximum.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal, NotExpr,
};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::scalar::ScalarValue;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::files::TableFiles;
use super::footers::read_footer;
use super::parquet::adapt;
use crate::{Error, Result};

/// For each row group of Parquet file `index`, whether statistics prove that all its rows pass all of
/// `predicates`, which are over the table's schema. Reads the footer, from the cache where it is there.
///
/// # Errors
/// `Data` where the footer is damaged.
pub async fn matched_groups(
    table: &TableFiles,
    index: usize,
    predicates: &[Arc<dyn PhysicalExpr>],
) -> Result<Vec<bool>> {
    let file = &table.files[index];
    let located = |error: Error| error.with_context("file", table.display_path(index));
    let footer =
        read_footer(&table.store, &file.meta, &table.footers, false).await.map_err(located)?;
    let physical = table.footers.schema(&footer)?;
    let mut matched = vec![true; footer.num_row_groups()];
    for predicate in predicates {
        let predicate = adapt(table, index, predicate, &physical)?;
        let Some(bounds) = Bounds::of(&footer, &physical, &predicate) else {
            return Ok(vec![false; matched.len()]);
        };
        for (group, matched) in matched.iter_mut().enumerate() {
            *matched =
                *matched && bounds.without_nulls[group] && bounds.always(&predicate, true, group);
        }
    }
    Ok(matched)
}

/// What the statistics of one file say of the columns of a predicate.
struct Bounds {
    /// Minimum and maximum by column, a value per row group; null where unknown.
    columns: HashMap<String, (ArrayRef, ArrayRef)>,
    /// By row group, whether no column holds a null.
    without_nulls: Vec<bool>,
}

impl Bounds {
    /// None where a column is of a kind that statistics prove nothing of.
    fn of(
        footer: &ParquetMetaData,
        physical: &SchemaRef,
        predicate: &Arc<dyn PhysicalExpr>,
    ) -> Option<Self> {
        let groups = footer.row_groups();
        let mut found = Self { columns: HashMap::new(), without_nulls: vec![true; groups.len()] };
        for column in collect_columns(predicate) {
            let field = physical.fields().get(column.index())?;
            if field.name() != column.name() || !has_total_bounds(field.data_type()) {
                return None;
            }
            let schema = footer.file_metadata().schema_descr();
            let statistics = StatisticsConverter::try_new(column.name(), physical, schema).ok()?;
            let leaf = statistics.parquet_column_index()?;
            for (group, without_nulls) in groups.iter().zip(&mut found.without_nulls) {
                *without_nulls &= holds_no_null(group, leaf);
            }
            let minima = statistics.row_group_mins(groups).ok()?;
            let maxima = statistics.row_group_maxes(groups).ok()?;
            found.columns.insert(column.name().to_owned(), (minima, maxima));
        }
        Some(found)
    }

    /// Whether `expr` is `wanted` for every row of row group `group`. False means "not proven".
    fn always(&self, expr: &Arc<dyn PhysicalExpr>, wanted: bool, group: usize) -> bool {
        let node = expr.as_any();
        if let Some(literal) = node.downcast_ref::<Literal>() {
            return *literal.value() == ScalarValue::Boolean(Some(wanted));
        }
        if let Some(not) = node.downcast_ref::<NotExpr>() {
            return self.always(not.arg(), !wanted, group);
        }
        if let Some(test) = node.downcast_ref::<IsNotNullExpr>() {
            return wanted && test.arg().as_any().is::<Column>();
        }
        if let Some(test) = node.downcast_ref::<IsNullExpr>() {
            return !wanted && test.arg().as_any().is::<Column>();
        }
        if let Some(list) = node.downcast_ref::<InListExpr>() {
            let mut equals = list.list().iter().map(|item| (item, Operator::Eq));
            // Outside of the list means unequal to each item; inside, equal to one of them.
            return match wanted == list.negated() {
                true => equals.all(|(item, op)| self.compares(list.expr(), op, item, false, group)),
                false => equals.any(|(item, op)| self.compares(list.expr(), op, item, true, group)),
            };
        }
        if let Some(binary) = node.downcast_ref::<BinaryExpr>() {
            let (left, right) = (binary.left(), binary.right());
            let (first, second) =
                (|| self.always(left, wanted, group), || self.always(right, wanted, group));
            return match (binary.op(), wanted) {
                (Operator::And, true) | (Operator::Or, false) => first() && second(),
                (Operator::And, false) | (Operator::Or, true) => first() || second(),
                (op, _) => self.compares(left, *op, right, wanted, group),
            };
        }
        // A boolean column by itself.
        self.bounds(expr, group).is_some_and(|(least, greatest)| {
            let value = ScalarValue::Boolean(Some(wanted));
            least == value && greatest == value
        })
    }

    /// Whether the comparison of a column with a constant, in either order, is `wanted` for every row.
    fn compares(
        &self,
        left: &Arc<dyn PhysicalExpr>,
        op: Operator,
        right: &Arc<dyn PhysicalExpr>,
        wanted: bool,
        group: usize,
    ) -> bool {
        let (column, op, constant) = match constant(right) {
            Some(value) => (left, Some(op), value),
            None => match constant(left) {
                Some(value) => (right, op.swap(), value),
                None => return false,
            },
        };
        let op = match op {
            Some(op) if wanted => Some(op),
            Some(op) => op.negate(),
            None => None,
        };
        let Some((least, greatest)) = self.bounds(column, group) else { return false };
        let (Some(least), Some(greatest)) =
            (least.partial_cmp(&constant), greatest.partial_cmp(&constant))
        else {
            return false;
        };
        match op {
            Some(Operator::Lt) => greatest.is_lt(),
            Some(Operator::LtEq) => greatest.is_le(),
            Some(Operator::Gt) => least.is_gt(),
            Some(Operator::GtEq) => least.is_ge(),
            // Without nulls on either side, IS [NOT] DISTINCT FROM is a plain comparison.
            Some(Operator::Eq | Operator::IsNotDistinctFrom) => least.is_eq() && greatest.is_eq(),
            Some(Operator::NotEq | Operator::IsDistinctFrom) => least.is_gt() || greatest.is_lt(),
            _ => false,
        }
    }

    /// Minimum and maximum of a column or of a column cast to a number, where known.
    fn bounds(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        group: usize,
    ) -> Option<(ScalarValue, ScalarValue)> {
        if let Some(column) = expr.as_any().downcast_ref::<Column>() {
            let (minima, maxima) = self.columns.get(column.name())?;
            if minima.is_null(group) || maxima.is_null(group) {
                return None;
            }
            let value = |values: &ArrayRef| ScalarValue::try_from_array(values, group).ok();
            return Some((value(minima)?, value(maxima)?));
        }
        // Casts between numbers keep the order, and fail instead of giving NULL.
        let cast = expr.as_any().downcast_ref::<CastExpr>()?;
        let (least, greatest) = self.bounds(cast.expr(), group)?;
        if !least.data_type().is_numeric()
            || !cast.cast_type().is_numeric()
            || cast.cast_options().safe
        {
            return None;
        }
        let value = |bound: ScalarValue| bound.cast_to(cast.cast_type()).ok();
        Some((value(least)?, value(greatest)?))
    }
}

fn constant(expr: &Arc<dyn PhysicalExpr>) -> Option<ScalarValue> {
    let value = expr.as_any().downcast_ref::<Literal>()?.value();
    (!value.is_null()).then(|| value.clone())
}

/// Types of which a minimum and a maximum bound every value: no floats, whose NaN is in neither, and
/// nothing nested.
fn has_total_bounds(data_type: &DataType) -> bool {
    data_type.is_integer()
        || data_type.is_decimal()
        || matches!(
            data_type,
            DataType::Boolean
                | DataType::Date32
                | DataType::Date64
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Timestamp(..)
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
        )
}

/// Whether a column chunk holds no null for sure, and its minimum and maximum are in the column's own
/// order, which files of old writers do not say.
fn holds_no_null(group: &RowGroupMetaData, leaf: usize) -> bool {
    let column = group.column(leaf);
    column.statistics().is_some_and(|statistics| {
        let required = column.column_descr().max_def_level() == 0;
        (required || statistics.null_count_opt() == Some(0)) && !statistics.is_min_max_deprecated()
    })
}
