//! Expressions over a table's columns become expressions over the columns of one of its files, if
//! both differ inside structs, lists and maps. DataFusion adapts columns that are not nested.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
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

/// The columns of one file that DataFusion's adapter must not meet: it would settle them otherwise.
pub trait SettledColumns: fmt::Debug + Send + Sync + 'static {
    /// The expression for a column of the table; None where DataFusion finds the right one.
    ///
    /// # Errors
    /// `Data` where the file's column does not become the table's.
    fn column(&self, column: &Column) -> Result<Option<Arc<dyn PhysicalExpr>>>;
}

/// Adapts expressions to one file.
#[derive(Debug)]
pub struct FileAdapter<C> {
    settled: C,
    /// DataFusion's own adapter: null for absent columns, and casts between types that are not
    /// nested.
    rest: Arc<dyn PhysicalExprAdapter>,
}

impl<C: SettledColumns> FileAdapter<C> {
    /// An adapter from the schema of a table to the one of a file.
    ///
    /// # Errors
    /// Errors of DataFusion's adapter.
    pub fn over(
        settled: C,
        table: SchemaRef,
        file: SchemaRef,
    ) -> DfResult<Arc<dyn PhysicalExprAdapter>> {
        let rest = DefaultPhysicalExprAdapterFactory.create(table, file)?;
        Ok(Arc::new(Self { settled, rest }))
    }
}

impl<C: SettledColumns> PhysicalExprAdapter for FileAdapter<C> {
    fn rewrite(&self, expr: Arc<dyn PhysicalExpr>) -> DfResult<Arc<dyn PhysicalExpr>> {
        if let Some(column) = expr.as_any().downcast_ref::<Column>() {
            return match self.settled.column(column)? {
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

/// How values of a file get the shape of a table's column.
pub trait Shape: Clone + fmt::Debug + Eq + Hash + Send + Sync + 'static {
    /// The name that plans show.
    const NAME: &'static str;

    /// The values as those of the table's column.
    ///
    /// # Errors
    /// `Data` where they do not become it.
    fn shaped(&self, values: &ArrayRef, target: &Field) -> Result<ArrayRef>;
}

/// A nested column of a file in the shape of the table's.
#[derive(Clone, Debug)]
pub struct Shaped<S> {
    /// The column of the file.
    pub child: Arc<dyn PhysicalExpr>,
    /// The column of the table.
    pub target: FieldRef,
    /// How one becomes the other.
    pub shape: S,
}

impl<S: Shape> PartialEq for Shaped<S> {
    fn eq(&self, other: &Self) -> bool {
        self.child.eq(&other.child) && self.target == other.target && self.shape == other.shape
    }
}

impl<S: Shape> Eq for Shaped<S> {}

impl<S: Shape> Hash for Shaped<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.child.hash(state);
        self.target.hash(state);
        self.shape.hash(state);
    }
}

impl<S: Shape> fmt::Display for Shaped<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} AS {})", S::NAME, self.child, self.target.data_type())
    }
}

impl<S: Shape> PhysicalExpr for Shaped<S> {
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
        Ok(ColumnarValue::Array(self.shape.shaped(&array, &self.target)?))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.child]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> DfResult<Arc<dyn PhysicalExpr>> {
        let child = children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.child));
        Ok(Arc::new(Self { child, ..self.as_ref().clone() }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Adapts expressions to files, nested fields by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByName;

impl PhysicalExprAdapterFactory for ByName {
    fn create(
        &self,
        logical_file_schema: SchemaRef,
        physical_file_schema: SchemaRef,
    ) -> DfResult<Arc<dyn PhysicalExprAdapter>> {
        let (table, file) = (Arc::clone(&logical_file_schema), Arc::clone(&physical_file_schema));
        FileAdapter::over(NamedColumns { table, file }, logical_file_schema, physical_file_schema)
    }
}

/// Nested columns of a file whose fields differ from the table's.
#[derive(Debug)]
struct NamedColumns {
    table: SchemaRef,
    file: SchemaRef,
}

impl SettledColumns for NamedColumns {
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
        let target = Arc::new(wanted.clone());
        Ok(Some(Arc::new(Shaped { child, target, shape: ByName })))
    }
}

impl Shape for ByName {
    const NAME: &'static str = "by_name";

    fn shaped(&self, values: &ArrayRef, target: &Field) -> Result<ArrayRef> {
        let named = |error: Error| error.with_context("column", target.name());
        reshape(values, target.data_type()).map_err(named)
    }
}
