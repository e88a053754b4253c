//! An operator that passes its rows on, and hides properties that the engine's rules would misuse.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};

use crate::basics::node_basics;

/// Why rows are passed on by an operator of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The projection below draws (`random()`): no filter and no projection moves into it, and none
    /// is merged with it.
    Drawn,
    /// An outer join above adds NULLs to the columns, so that no column is constant above it, even
    /// if it is below.
    Padded,
}

/// Passes rows on.
#[derive(Debug)]
pub struct PassOnExec {
    input: Arc<dyn ExecutionPlan>,
    reason: Reason,
    properties: Arc<PlanProperties>,
}

impl PassOnExec {
    /// The rows of `input`.
    pub fn new(input: Arc<dyn ExecutionPlan>, reason: Reason) -> Self {
        let equal = match reason {
            Reason::Drawn => input.equivalence_properties().clone(),
            Reason::Padded => EquivalenceProperties::new(input.schema()),
        };
        let properties = Arc::new(PlanProperties::new(
            equal,
            input.output_partitioning().clone(),
            input.pipeline_behavior(),
            input.boundedness(),
        ));
        Self { input, reason, properties }
    }

    /// Why it is there.
    pub fn reason(&self) -> Reason {
        self.reason
    }
}

impl DisplayAs for PassOnExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PassOnExec: {:?}", self.reason)
    }
}

impl ExecutionPlan for PassOnExec {
    node_basics!("PassOnExec");

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![self.reason == Reason::Drawn]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(children.swap_remove(0), self.reason)))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Statistics> {
        self.input.partition_statistics(partition)
    }
}
