//! Casts that do not keep the order of values: bounds do not survive them.

use arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, TryCastExpr};
use std::sync::Arc;

/// Whether a predicate holds a cast by which pruning would go wrong: DataFusion 53.1 casts the bounds of a column as if
/// every cast kept their order, and the time of day of a timestamp does not.
pub fn has_unordered_cast(predicate: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    let mut found = false;
    let walked = predicate.apply(|node| {
        let any = node.as_any();
        let cast = any
            .downcast_ref::<CastExpr>()
            .map(|cast| (cast.expr(), cast.cast_type()))
            .or_else(|| any.downcast_ref::<TryCastExpr>().map(|c| (c.expr(), c.cast_type())));
        if let Some((inner, to)) = cast {
            found |= !keeps_order(&inner.data_type(schema)?, to);
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    // What cannot be typed cannot be trusted either.
    found || walked.is_err()
}

fn keeps_order(from: &DataType, to: &DataType) -> bool {
    use DataType::{Boolean, Time32, Time64, Timestamp};
    let is_utc = |zone: &Option<Arc<str>>| {
        zone.as_deref().is_none_or(|zone| matches!(zone, "UTC" | "+00:00" | "Z"))
    };
    match (from, to) {
        (from, to) if from == to => true,
        (Timestamp(..), Time32(_) | Time64(_)) | (_, Boolean) => false,
        // A zone with daylight saving repeats an hour.
        (Timestamp(_, a), Timestamp(_, b)) => a == b || (is_utc(a) && is_utc(b)),
        _ => true,
    }
}
