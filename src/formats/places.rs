//! Places of columns by their names.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result as DfResult;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;

/// The place of each column of a schema. A schema itself looks through all of its columns for each
/// name, which for a projection of ten thousands of them takes minutes.
pub(super) struct Places<'a>(HashMap<&'a str, usize>);

impl<'a> Places<'a> {
    /// Places by name; of two columns with one name, the first.
    pub(super) fn of(schema: &'a Schema) -> Self {
        let mut places = HashMap::with_capacity(schema.fields().len());
        for (place, field) in schema.fields().iter().enumerate() {
            places.entry(field.name().as_str()).or_insert(place);
        }
        Self(places)
    }

    /// Moves an expression over that schema to the other places.
    pub(super) fn reassign(&self, expr: Arc<dyn PhysicalExpr>) -> DfResult<Arc<dyn PhysicalExpr>> {
        expr.transform_down(|node| {
            let Some(column) = node.as_any().downcast_ref::<Column>() else {
                return Ok(Transformed::no(node));
            };
            let name = column.name();
            let place = self.0.get(name);
            let place = place.ok_or_else(|| internal_datafusion_err!("no column {name}"))?;
            Ok(Transformed::yes(Arc::new(Column::new(name, *place))))
        })
        .data()
    }
}
