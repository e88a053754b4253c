//! Aggregates over frames that slide, computed anew for each frame.
//!
//! DataFusion 53 subtracts values that leave a frame from its state. For floats the result differs:
//! a NaN or an infinity stays for ever, and digits of small numbers that a large one absorbed are
//! lost with it, so that a variance may be below zero. Its `median` and `min` are wrong where
//! values repeat or are NULL, its `bit_xor` of no value is 0, and its `max` keeps values that a
//! FILTER leaves out.
//!
//! Upstream: apache/datafusion#21299.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, merge_schema};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, ExprSchemable, LogicalPlan, ReversedUDAF,
    SetMonotonicity, Signature, WindowFunctionDefinition,
};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};

use super::walk::PlanRule;
use crate::basics::forwarded;

/// Pieces of a frame that are joined when there are more.
const PIECES: usize = 16;

/// Puts aggregates over sliding frames behind [`Anew`].
pub const SLIDE_ANEW: PlanRule = PlanRule::new("slide_anew", |plan, _| {
    plan.transform_down_with_subqueries(|node| match &node {
        LogicalPlan::Window(_) => {
            let schema = merge_schema(&node.inputs());
            let takes_floats = |args: &[Expr]| {
                args.iter().any(|arg| arg.get_type(&schema).is_ok_and(|of| of.is_floating()))
            };
            node.map_expressions(|expr| expr.transform_down(|expr| slide(expr, takes_floats)))
        }
        _ => Ok(Transformed::no(node)),
    })
});

fn slide(expr: Expr, takes_floats: impl Fn(&[Expr]) -> bool) -> Result<Transformed<Expr>> {
    let Expr::WindowFunction(mut function) = expr else { return Ok(Transformed::no(expr)) };
    let WindowFunctionDefinition::AggregateUDF(aggregate) = &function.fun else {
        return Ok(Transformed::no(Expr::WindowFunction(function)));
    };
    let slides = !function.params.window_frame.start_bound.is_unbounded();
    let differs = match aggregate.name() {
        "median" | "min" | "bit_xor" => true,
        // What its FILTER keeps out stays in its frame.
        "max" => function.params.filter.is_some(),
        "count" | "array_agg" => false,
        _ => takes_floats(&function.params.args),
    };
    let is_done = aggregate.inner().as_any().is::<Anew>();
    if !slides || !differs || is_done {
        return Ok(Transformed::no(Expr::WindowFunction(function)));
    }
    let anew = AggregateUDF::from(Anew { inner: Arc::clone(aggregate) });
    function.fun = WindowFunctionDefinition::AggregateUDF(Arc::new(anew));
    Ok(Transformed::yes(Expr::WindowFunction(function)))
}

/// An aggregate whose sliding accumulator begins anew for each frame.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Anew {
    inner: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for Anew {
    fn as_any(&self) -> &dyn Any {
        self
    }

    forwarded! {
        this => this.inner;
        fn name(&self) -> &str;
        fn signature(&self) -> &Signature;
        fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>>;
    }

    forwarded! {
        this => this.inner.inner();
        fn return_type(&self, types: &[DataType]) -> Result<DataType>;
        fn return_field(&self, fields: &[FieldRef]) -> Result<FieldRef>;
        fn is_nullable(&self) -> bool;
        fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>>;
        fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>>;
        fn order_sensitivity(&self) -> AggregateOrderSensitivity;
        fn reverse_expr(&self) -> ReversedUDAF;
        fn default_value(&self, data_type: &DataType) -> Result<ScalarValue>;
        fn supports_null_handling_clause(&self) -> bool;
        fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity;
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Frame {
            aggregate: Arc::clone(&self.inner),
            args: Args::from(args),
            pieces: VecDeque::new(),
            gone: 0,
        }))
    }
}

/// The arguments of an accumulator.
#[derive(Debug)]
struct Args {
    return_field: FieldRef,
    schema: Schema,
    ignore_nulls: bool,
    order_bys: Vec<PhysicalSortExpr>,
    is_reversed: bool,
    name: String,
    is_distinct: bool,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    expr_fields: Vec<FieldRef>,
}

impl From<AccumulatorArgs<'_>> for Args {
    fn from(args: AccumulatorArgs<'_>) -> Self {
        Self {
            return_field: args.return_field,
            schema: args.schema.clone(),
            ignore_nulls: args.ignore_nulls,
            order_bys: args.order_bys.to_vec(),
            is_reversed: args.is_reversed,
            name: args.name.to_owned(),
            is_distinct: args.is_distinct,
            exprs: args.exprs.to_vec(),
            expr_fields: args.expr_fields.to_vec(),
        }
    }
}

impl Args {
    fn lent(&self) -> AccumulatorArgs<'_> {
        AccumulatorArgs {
            return_field: Arc::clone(&self.return_field),
            schema: &self.schema,
            ignore_nulls: self.ignore_nulls,
            order_bys: &self.order_bys,
            is_reversed: self.is_reversed,
            name: &self.name,
            is_distinct: self.is_distinct,
            exprs: &self.exprs,
            expr_fields: &self.expr_fields,
        }
    }
}

/// The rows of a frame.
#[derive(Debug)]
struct Frame {
    aggregate: Arc<AggregateUDF>,
    args: Args,
    /// Columns of rows as they came, none of them empty.
    pieces: VecDeque<Vec<ArrayRef>>,
    /// Rows of the first piece that have left.
    gone: usize,
}

impl Frame {
    fn join(&mut self) -> Result<()> {
        let pieces = std::mem::take(&mut self.pieces);
        let columns = pieces.front().map_or(0, Vec::len);
        let joined = (0..columns).map(|column| {
            let parts: Vec<&dyn Array> =
                pieces.iter().map(|piece| piece[column].as_ref()).collect();
            let whole = concat(&parts)?;
            Ok(whole.slice(self.gone, whole.len() - self.gone))
        });
        let joined = joined.collect::<Result<Vec<ArrayRef>>>()?;
        self.gone = 0;
        if joined.first().is_some_and(|column| !column.is_empty()) {
            self.pieces.push_back(joined);
        }
        Ok(())
    }

    fn accumulated(&self) -> Result<Box<dyn Accumulator>> {
        let mut accumulator = self.aggregate.accumulator(self.args.lent())?;
        for (number, piece) in self.pieces.iter().enumerate() {
            let gone = if number == 0 { self.gone } else { 0 };
            let rest: Vec<ArrayRef> =
                piece.iter().map(|column| column.slice(gone, column.len() - gone)).collect();
            accumulator.update_batch(&rest)?;
        }
        Ok(accumulator)
    }
}

impl Accumulator for Frame {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        if values.first().is_some_and(|column| !column.is_empty()) {
            self.pieces.push_back(values.to_vec());
        }
        if self.pieces.len() > PIECES {
            self.join()?;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.gone += values.first().map_or(0, |column| column.len());
        while let Some(first) = self.pieces.front()
            && first[0].len() <= self.gone
        {
            self.gone -= first[0].len();
            self.pieces.pop_front();
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.accumulated()?.evaluate()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.accumulated()?.state()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        datafusion::common::internal_err!("frames of windows are not merged")
    }

    fn size(&self) -> usize {
        let columns = self.pieces.iter().flatten();
        size_of_val(self) + columns.map(|column| column.get_array_memory_size()).sum::<usize>()
    }
}
