//! Expressions over a table's columns become expressions over the columns of one of its files, if
//! both differ inside structs, lists and maps. DataFusion adapts columns that are not nested.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapter, PhysicalExprAdapterFactory,
};

use super::reshape::{can_reshape, reshape};
use crate::{Error, Result};

/// Adapts expressions to files, nested fields by their names.
#[derive(Clone, Copy, Debug)]
pub struct ByName;

impl PhysicalExprAdapterFactory for ByName {
    fn create(
        &self,
        logical_file_schema: SchemaRef,
        physical_file_schema: SchemaRef,
    ) -> DfResult<Arc<dyn PhysicalExprAdapter>> {
        let rest = DefaultPhysicalExprAdapterFactory
            .create(Arc::clone(&logical_file_schema), Arc::clone(&physical_file_schema))?;
        Ok(Arc::new(FileAdapter { table: logical_file_schema, file: physical_file_schema, rest }))
    }
}

/// A [`ByName`] for the schema of one file.
#[derive(Debug)]
struct FileAdapter {
    table: SchemaRef,
    file: SchemaRef,
    /// DataFusion's own adapter: null for absent columns, and casts between types that are not
    /// nested.
    rest: Arc<dyn PhysicalExprAdapter>,
}

impl FileAdapter {
    /// The column of the file in the shape of the table's; None where nothing inside of it differs.
    fn column(&self, column: &Column) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let (Ok(place), Ok(wanted)) =
            (self.file.index_of(column.name()), self.table.field_with_name(column.name()))
        else {
            return Ok(None);
        };
        let stored = self.file.field(place);
        let (from, to) = (stored.data_type(), wanted.data_type());
        if from == to {
            return Ok(None);
        }
        if !from.is_nested() || !to.is_nested() {
            return Ok(None);
        }
        can_reshape(from, to).map_err(|what| {
            Error::data(format!(
                "column {:?} is {from} in the file and {to} in the table: {what}; declare the table's schema (schema=), or \
                 register the files apart",
                column.name()
            ))
        })?;
        let child: Arc<dyn PhysicalExpr> = Arc::new(Column::new(column.name(), place));
        Ok(Some(Arc::new(Reshaped { child, target: Arc::new(wanted.clone()) })))
    }
}

impl PhysicalExprAdapter for FileAdapter {
    fn rewrite(&self, expr: Arc<dyn PhysicalExpr>) -> DfResult<Arc<dyn PhysicalExpr>> {
        // Columns that are settled here must not meet DataFusion's adapter, which would settle them
        // otherwise.
        if let Some(column) = expr.as_any().downcast_ref::<Column>() {
            return match self.column(column)? {
                Some(settled) => Ok(settled),
                None => self.rest.rewrite(expr),
            };
        }
        let children = expr.children();
        let adapted = children.iter().map(|child| self.rewrite(Arc::clone(child)));
        let adapted = adapted.collect::<DfResult<Vec<_>>>()?;
        let is_same = children.iter().zip(&adapted).all(|(old, new)| Arc::ptr_eq(old, new));
        if is_same { Ok(expr) } else { expr.with_new_children(adapted) }
    }
}

/// A nested column of a file in the shape of the table's.
#[derive(Clone, Debug)]
struct Reshaped {
    child: Arc<dyn PhysicalExpr>,
    target: FieldRef,
}

impl PartialEq for Reshaped {
    fn eq(&self, other: &Self) -> bool {
        self.child.eq(&other.child) && self.target == other.target
    }
}

impl Eq for Reshaped {}

impl Hash for Reshaped {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.child.hash(state);
        self.target.hash(state);
    }
}

impl fmt::Display for Reshaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by_name({} AS {})", self.child, self.target.data_type())
    }
}

impl PhysicalExpr for Reshaped {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn data_type(&self, _: &Schema) -> DfResult<DataType> {
        Ok(self.target.data_type().clone())
    }

    fn nullable(&self, _: &Schema) -> DfResult<bool> {
        Ok(self.target.is_nullable())
    }

    fn evaluate(&self, batch: &RecordBatch) -> DfResult<ColumnarValue> {
        let array = self.child.evaluate(batch)?.into_array(batch.num_rows())?;
        let named = |error: Error| error.with_context("column", self.target.name());
        let array = reshape(&array, self.target.data_type()).map_err(named)?;
        Ok(ColumnarValue::Array(array))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.child]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> DfResult<Arc<dyn PhysicalExpr>> {
        let child = children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.child));
        Ok(Arc::new(Self { child, target: Arc::clone(&self.target) }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
