//! From the logical to the physical plan, with the nodes that DataFusion does not have.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::error::Result;
use datafusion::execution::context::{QueryPlanner, SessionState};
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use crate::exec::{PassOnExec, Reason};
use crate::query::Drawn;

/// DataFusion's planner, and [`Drawn`].
#[derive(Debug)]
pub struct Planner;

#[async_trait]
impl QueryPlanner for Planner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        state: &SessionState,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(OwnNodes)]);
        planner.create_physical_plan(plan, state).await
    }
}

struct OwnNodes;

#[async_trait]
impl ExtensionPlanner for OwnNodes {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &SessionState,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        Ok(match inputs {
            [input] if node.as_any().is::<Drawn>() => {
                Some(Arc::new(PassOnExec::new(Arc::clone(input), Reason::Drawn)))
            }
            _ => None,
        })
    }
}
