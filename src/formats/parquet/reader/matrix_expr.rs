//! A matrix as an expression of a scan's projection.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

use crate::matrix::{Matrix, matrix_type, native_bytes};

/// Columns of one primitive type side by side. Scans that decode columns themselves write them into
/// the matrix a few at a time; others evaluate it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct MatrixExpr {
    columns: Vec<Arc<dyn PhysicalExpr>>,
    item: DataType,
}

impl MatrixExpr {
    /// A matrix of `columns`, which are all of the type `item`; None where that is not a type of
    /// numbers of one size.
    pub fn try_new(columns: Vec<Arc<dyn PhysicalExpr>>, item: DataType) -> Option<Self> {
        let is_possible = item.primitive_width().is_some_and(|bytes| bytes <= 8)
            && i32::try_from(columns.len()).is_ok_and(|count| count > 0);
        is_possible.then_some(Self { columns, item })
    }

    /// Its columns.
    pub fn columns(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.columns
    }

    /// The type of its columns.
    pub fn item(&self) -> &DataType {
        &self.item
    }
}

impl fmt::Display for MatrixExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("matrix(")?;
        for (number, column) in self.columns.iter().enumerate() {
            write!(f, "{}{column}", if number == 0 { "" } else { ", " })?;
        }
        f.write_str(")")
    }
}

impl PhysicalExpr for MatrixExpr {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn data_type(&self, _: &Schema) -> DfResult<DataType> {
        let width = i32::try_from(self.columns.len());
        let width = width.map_err(|_| internal_datafusion_err!("a matrix is too wide"))?;
        Ok(matrix_type(&self.item, width))
    }

    /// Only its numbers may be null.
    fn nullable(&self, _: &Schema) -> DfResult<bool> {
        Ok(false)
    }

    fn evaluate(&self, batch: &RecordBatch) -> DfResult<ColumnarValue> {
        let rows = batch.num_rows();
        let column = |column: &Arc<dyn PhysicalExpr>| column.evaluate(batch)?.into_array(rows);
        let columns: Vec<ArrayRef> = self.columns.iter().map(column).collect::<DfResult<_>>()?;
        if let Some(other) = columns.iter().find(|column| column.data_type() != &self.item) {
            return internal_err!("a column of {} in a matrix of {}", other.data_type(), self.item);
        }
        let size = self.item.primitive_width().unwrap_or_default();
        let matrix = Matrix::new(rows, columns.len(), size).and_then(|mut matrix| {
            let cells: Vec<&[u8]> =
                columns.iter().map(|column| native_bytes(column.as_ref())).collect();
            matrix.write(0, &cells);
            for (place, column) in columns.iter().enumerate() {
                matrix.set_nulls(place, column.nulls());
            }
            matrix.finish(&self.item)
        });
        let matrix = matrix.ok_or_else(|| internal_datafusion_err!("no matrix of {rows} rows"))?;
        Ok(ColumnarValue::Array(Arc::new(matrix)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.columns.iter().collect()
    }

    fn with_new_children(
        self: Arc<Self>,
        columns: Vec<Arc<dyn PhysicalExpr>>,
    ) -> DfResult<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Self { columns, item: self.item.clone() }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
