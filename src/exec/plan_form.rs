//! The form of a physical plan: everything that two processes must plan alike to read the same rows
//! in the same order.
//!
//! Operators that run split by split and all expressions in them name their fields here. Build
//! sides of joins, which run once, and unknown operators or expressions are represented by their
//! line in EXPLAIN, their columns and their inputs. The computation itself is in the query's SQL,
//! which every fingerprint includes beside the plan.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{JoinSide, NullEquality};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{ExecutionPlan, displayable};

use super::pass_on::{PassOnExec, Reason};
use super::rewrite::{file_scan, pruning_predicate};
use super::sample::SampleExec;
use super::split_scan::{ScanSource, SplitScanExec};
use crate::fingerprint::{self, Form, data_type};
use crate::formats::FileRef;
use crate::{Error, Result};

/// Files of a scan that its form names: the first ones. A worker that has only a share of the files
/// has these, too.
pub const NAMED_FILES: usize = 5;

/// Writes a plan before splits are put in.
///
/// # Arguments
/// `stable` turns a file's path, or a line of text, into one that says the content and not the
/// place, where it can.
///
/// # Errors
/// `Config` where a type has no form; internal errors where an operator does not know its own
/// columns.
pub fn write_plan(
    form: &mut Form,
    tag: &str,
    plan: &Arc<dyn ExecutionPlan>,
    stable: &dyn Fn(&str) -> String,
) -> Result<()> {
    form.nested(tag, "operator", |form| {
        operator(form, plan, stable)?;
        form.optional_number("fetch", plan.fetch().map(|rows| rows as u64));
        fingerprint::schema(form, "columns", &plan.schema())?;
        form.list("inputs", plan.children(), |form, input| {
            write_plan(form, "input", input, stable)
        })?;
        Ok(())
    })?;
    Ok(())
}

fn operator(
    form: &mut Form,
    plan: &Arc<dyn ExecutionPlan>,
    stable: &dyn Fn(&str) -> String,
) -> Result<()> {
    let node = plan.as_any();
    if let Some(scan) = node.downcast_ref::<DataSourceExec>().and_then(file_scan) {
        form.text("kind", "file scan");
        return write_scan(form, scan, stable);
    }
    if let Some(scan) = node.downcast_ref::<SplitScanExec>() {
        form.text("kind", "table scan");
        return write_source(form, scan);
    }
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        form.text("kind", "filter");
        write_expression(form, "predicate", filter.predicate())?;
        return write_indices(form, "projection", filter.projection().as_deref());
    }
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        form.text("kind", "projection");
        return write_projection(form, "outputs", projection.expr());
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        form.text("kind", "hash join").text("type", &join.join_type().to_string());
        form.flag("null aware", join.null_aware);
        form.flag("nulls equal", join.null_equality() == NullEquality::NullEqualsNull);
        form.list("on", join.on(), |form, (left, right)| {
            write_expression(form, "left", left)?;
            write_expression(form, "right", right)
        })?;
        write_join_filter(form, join.filter())?;
        return write_indices(form, "projection", join.projection.as_deref());
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        form.text("kind", "loop join").text("type", &join.join_type().to_string());
        write_join_filter(form, join.filter())?;
        return write_indices(form, "projection", join.projection().as_deref());
    }
    if let Some(unnest) = node.downcast_ref::<UnnestExec>() {
        form.text("kind", "unnest").flag("preserve nulls", unnest.options().preserve_nulls);
        form.list("lists", unnest.list_column_indices(), |form, list| {
            form.number("column", list.index_in_input_schema as u64);
            form.number("depth", list.depth as u64);
            Ok(())
        })?;
        return write_indices(form, "structs", Some(unnest.struct_column_indices()));
    }
    if let Some(sample) = node.downcast_ref::<SampleExec>() {
        let sample = sample.sample();
        form.text("kind", "bernoulli sample").number("seed", sample.seed);
        form.number("percent as bits", sample.percent.to_bits());
        return Ok(());
    }
    let kind = match node {
        node if node.is::<UnionExec>() => "union all",
        node if node.is::<CrossJoinExec>() => "cross join",
        node if node.is::<CooperativeExec>() => "cooperative",
        node if node.is::<EmptyExec>() => "no rows",
        node if let Some(passed) = node.downcast_ref::<PassOnExec>() => match passed.reason() {
            Reason::Drawn => "drawn once",
            Reason::Padded => "padded with NULLs",
        },
        _ => {
            let line = displayable(plan.as_ref()).one_line().to_string();
            form.text("kind", "another").text("line", &stable(line.trim_end()));
            return Ok(());
        }
    };
    form.text("kind", kind);
    Ok(())
}

/// Writes the parts of a scan that decide which data it reads from a file. The fingerprint covers
/// the files and their content elsewhere.
fn write_scan(
    form: &mut Form,
    scan: &FileScanConfig,
    stable: &dyn Fn(&str) -> String,
) -> Result<()> {
    let mut files = scan.file_groups.iter().flat_map(|group| group.files());
    let table = files.clone().next().and_then(FileRef::of).map(|file| &file.table);
    match table {
        Some(table) => {
            form.nested("format", "format", |form| {
                table.format.write(form);
                Ok(())
            })?;
            // The identity of a Delta table begins with its format's name.
            let lake = table.metadata.as_ref().map(|lake| lake.identity()).transpose()?;
            form.optional_text("iceberg", lake.as_deref());
        }
        None => {
            form.absent("format").absent("iceberg");
        }
    }
    form.list("first files", files.by_ref().take(NAMED_FILES), |form, file| {
        form.text("path", &stable(file.object_meta.location.as_ref()));
        form.optional_number("start", file.range.as_ref().map(|range| range.start as u64));
        form.optional_number("end", file.range.as_ref().map(|range| range.end as u64));
        Ok(())
    })?;
    form.flag("more files", files.next().is_some());
    form.optional_number("limit", scan.limit.map(|rows| rows as u64));
    match scan.file_source.projection() {
        Some(projection) => write_projection(form, "projection", projection.as_ref())?,
        None => {
            form.absent("projection");
        }
    }
    write_optional(form, "predicate", scan.file_source.filter().as_ref())?;
    write_optional(form, "pruning predicate", pruning_predicate(scan).as_ref())
}

fn write_source(form: &mut Form, scan: &SplitScanExec) -> Result<()> {
    match scan.source() {
        ScanSource::Memory { batches, projection, content, stands_for, .. } => {
            let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
            form.text("source", "memory").number("rows", rows as u64);
            form.optional_text("content", content.as_deref());
            form.optional_text("stands for", stands_for.as_deref());
            write_indices(form, "projection", projection.as_deref())
        }
        ScanSource::Empty => {
            form.text("source", "nothing");
            Ok(())
        }
        ScanSource::Files { config, .. } => {
            form.text("source", "files");
            write_scan(form, config, &str::to_owned)
        }
    }
}

fn write_join_filter(form: &mut Form, filter: Option<&JoinFilter>) -> Result<()> {
    let Some(filter) = filter else {
        form.absent("filter");
        return Ok(());
    };
    form.nested("filter", "join filter", |form| {
        write_expression(form, "condition", filter.expression())?;
        form.list("columns", filter.column_indices(), |form, column| {
            form.number("index", column.index as u64);
            let side = match column.side {
                JoinSide::Left => "left",
                JoinSide::Right => "right",
                JoinSide::None => "neither",
            };
            form.text("side", side);
            Ok(())
        })?;
        Ok(())
    })?;
    Ok(())
}

fn write_projection(form: &mut Form, tag: &str, outputs: &[ProjectionExpr]) -> Result<()> {
    form.list(tag, outputs, |form, output| {
        form.text("name", &output.alias);
        write_expression(form, "value", &output.expr)
    })?;
    Ok(())
}

fn write_indices(form: &mut Form, tag: &str, indices: Option<&[usize]>) -> Result<()> {
    let Some(indices) = indices else {
        form.absent(tag);
        return Ok(());
    };
    form.list(tag, indices, |form, index| {
        form.number("index", *index as u64);
        Ok(())
    })?;
    Ok(())
}

fn write_optional(
    form: &mut Form,
    tag: &str,
    expression: Option<&Arc<dyn PhysicalExpr>>,
) -> Result<()> {
    match expression {
        Some(expression) => write_expression(form, tag, expression),
        None => {
            form.absent(tag);
            Ok(())
        }
    }
}

/// Writes an expression: its operation, with types, and its inputs.
///
/// # Errors
/// `Config` where a type has no form.
pub fn write_expression(
    form: &mut Form,
    tag: &str,
    expression: &Arc<dyn PhysicalExpr>,
) -> Result<()> {
    form.nested(tag, "expression", |form| {
        computed(form, expression)?;
        form.list("inputs", expression.children(), |form, input| {
            write_expression(form, "input", input)
        })?;
        Ok(())
    })?;
    Ok(())
}

fn computed(form: &mut Form, expression: &Arc<dyn PhysicalExpr>) -> Result<()> {
    let node = expression.as_any();
    let target = |form: &mut Form, kind: &str, to: &DataType| {
        form.text("kind", kind);
        data_type(form, "type", to)
    };
    if let Some(column) = node.downcast_ref::<Column>() {
        form.text("kind", "column").text("name", column.name());
        form.number("index", column.index() as u64);
    } else if let Some(literal) = node.downcast_ref::<Literal>() {
        form.text("kind", "literal");
        let value = literal.value().to_array().map_err(Error::from)?;
        fingerprint::values(form, "value", value.as_ref())?;
    } else if let Some(binary) = node.downcast_ref::<BinaryExpr>() {
        form.text("kind", "binary").text("operator", &binary.op().to_string());
    } else if let Some(cast) = node.downcast_ref::<CastExpr>() {
        target(form, "cast", cast.cast_type())?;
        form.flag("safe", cast.cast_options().safe);
    } else if let Some(cast) = node.downcast_ref::<TryCastExpr>() {
        target(form, "try cast", cast.cast_type())?;
    } else if let Some(case) = node.downcast_ref::<CaseExpr>() {
        // The inputs are the operand, each condition and its value in turn, and what else.
        form.text("kind", "case").flag("operand", case.expr().is_some());
        form.flag("else", case.else_expr().is_some());
    } else if let Some(list) = node.downcast_ref::<InListExpr>() {
        form.text("kind", "in list").flag("negated", list.negated());
    } else if let Some(like) = node.downcast_ref::<LikeExpr>() {
        form.text("kind", "like").flag("negated", like.negated());
        form.flag("ignores case", like.case_insensitive());
    } else if let Some(function) = node.downcast_ref::<ScalarFunctionExpr>() {
        form.text("name", function.name()).flag("nullable", function.nullable());
        target(form, "function", function.return_type())?;
    } else if node.is::<NotExpr>() {
        form.text("kind", "not");
    } else if node.is::<NegativeExpr>() {
        form.text("kind", "negative");
    } else if node.is::<IsNullExpr>() {
        form.text("kind", "is null");
    } else if node.is::<IsNotNullExpr>() {
        form.text("kind", "is not null");
    } else {
        form.text("kind", "another").text("line", &expression.to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
