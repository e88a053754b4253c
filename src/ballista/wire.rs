//! A plan as bytes that mean the same where they are decoded.
//!
//! DataFusion's wire format silently drops properties without a field (how a join takes NULL, for
//! example). So the encoded plan is decoded again here, and both plans are compared node by node.

use ballista_core::serde::BallistaLogicalExtensionCodec;
use datafusion::logical_expr::{Distinct, Expr, FetchType, LogicalPlan, SkipType};
use datafusion::prelude::SessionContext;
use datafusion_proto::logical_plan::AsLogicalPlan;
use datafusion_proto::protobuf::LogicalPlanNode;

use super::judge::refused;
use crate::{Error, Result};

/// Limit of a scheduler's message unless it is started with a higher one: 16 MiB, part of which is
/// not the plan.
const MESSAGE_BYTES: usize = 15 << 20;

/// The plan as a scheduler decodes it.
///
/// # Errors
/// `Query` where it has no such form, or would be another plan there.
pub(super) fn encode(plan: &LogicalPlan) -> Result<Vec<u8>> {
    let codec = BallistaLogicalExtensionCodec::default();
    let lost = |error: datafusion::error::DataFusionError| {
        let error = Error::from(error);
        refused(&format!("its plan has no form that can be sent ({})", error.message()))
    };
    let mut bytes = Vec::new();
    LogicalPlanNode::try_from_logical_plan(plan, &codec)
        .and_then(|message| message.try_encode(&mut bytes))
        .map_err(lost)?;
    // With the functions that executors have, and no others.
    let there = SessionContext::new();
    let received = LogicalPlanNode::try_decode(&bytes)
        .and_then(|message| message.try_into_logical_plan(&there.task_ctx(), &codec))
        .map_err(lost)?;
    if let Some(node) = difference(plan, &received)? {
        return Err(refused(&format!(
            "this part of its plan changes its meaning on the way: {node}"
        )));
    }
    if bytes.len() > MESSAGE_BYTES {
        return Err(refused(&format!(
            "its plan takes {} MiB, and a scheduler {} MiB: it names too many files",
            bytes.len() >> 20,
            MESSAGE_BYTES >> 20
        )));
    }
    Ok(bytes)
}

/// The first node, from above, that is not the same in both plans.
fn difference(sent: &LogicalPlan, received: &LogicalPlan) -> Result<Option<String>> {
    let (left, right) = (sent.inputs(), received.inputs());
    let same = std::mem::discriminant(sent) == std::mem::discriminant(received)
        && columns(sent) == columns(received)
        && expressions(sent) == expressions(received)
        && settings(sent)? == settings(received)?
        && left.len() == right.len();
    if !same {
        return Ok(Some(sent.display().to_string()));
    }
    for (left, right) in left.into_iter().zip(right) {
        if let Some(node) = difference(left, right)? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Qualifiers, names and types. Whether a column may be NULL is worked out again on the other side.
fn columns(plan: &LogicalPlan) -> Vec<String> {
    let columns = plan.schema().iter();
    columns
        .map(|(qualifier, field)| format!("{qualifier:?} {:?} {}", field.name(), field.data_type()))
        .collect()
}

fn expressions(plan: &LogicalPlan) -> Vec<Expr> {
    match plan {
        // No OFFSET and OFFSET 0 are two expressions: see `settings`.
        LogicalPlan::Limit(_) => Vec::new(),
        plan => plan.expressions(),
    }
}

/// Describes a node's settings: everything except its expressions and inputs.
fn settings(plan: &LogicalPlan) -> Result<String> {
    Ok(match plan {
        LogicalPlan::Join(join) => {
            format!("{:?} {:?} {}", join.join_type, join.null_equality, join.null_aware)
        }
        LogicalPlan::Limit(limit) => {
            let skip = match limit.get_skip_type()? {
                SkipType::Literal(skip) => skip.to_string(),
                SkipType::UnsupportedExpr => "an expression".to_owned(),
            };
            let fetch = match limit.get_fetch_type()? {
                FetchType::Literal(fetch) => format!("{fetch:?}"),
                FetchType::UnsupportedExpr => "an expression".to_owned(),
            };
            format!("{skip} {fetch}")
        }
        LogicalPlan::Sort(sort) => format!("{:?}", sort.fetch),
        LogicalPlan::TableScan(scan) => format!("{} {:?}", scan.table_name, scan.fetch),
        LogicalPlan::SubqueryAlias(alias) => alias.alias.to_string(),
        LogicalPlan::Distinct(distinct) => matches!(distinct, Distinct::All(_)).to_string(),
        LogicalPlan::Unnest(unnest) => format!(
            "{:?} {:?} {:?} {:?}",
            unnest.exec_columns,
            unnest.list_type_columns,
            unnest.struct_type_columns,
            unnest.options
        ),
        LogicalPlan::EmptyRelation(empty) => empty.produce_one_row.to_string(),
        LogicalPlan::Copy(copy) => format!("{} {:?}", copy.output_url, copy.partition_by),
        _ => String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{judge, scans};
    use super::*;

    const TABLES: &str = "WITH t (k, v, s) AS (VALUES (1, 2.5, 'a'), (2, NULL, 'b'), (NULL, 1.0, 'a')), \
                          u (k, w) AS (VALUES (1, 10), (3, 30))";

    async fn optimised(sql: &str) -> LogicalPlan {
        let context = SessionContext::new();
        let plan = context.sql(&format!("{TABLES} {sql}")).await.unwrap();
        context.state().optimize(plan.logical_plan()).unwrap()
    }

    #[tokio::test]
    async fn what_can_be_said_on_the_wire_is_sent() {
        for sql in [
            "SELECT k, count(*) AS n, sum(DISTINCT v) FILTER (WHERE s = 'a') AS s FROM t GROUP BY k",
            "SELECT array_agg(v ORDER BY k DESC NULLS LAST) AS l, approx_distinct(s) AS d FROM t",
            "SELECT k, lag(v, 2, 0.0) OVER (PARTITION BY s ORDER BY k DESC NULLS FIRST) AS l FROM t",
            "SELECT sum(v) OVER (ORDER BY k ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING) AS m FROM t",
            "SELECT k, v FROM t ORDER BY v DESC NULLS LAST, k LIMIT 3 OFFSET 1",
            "SELECT k FROM t UNION ALL SELECT w FROM u UNION ALL SELECT k + 1 FROM u",
            "SELECT DISTINCT s FROM t UNION SELECT 'c'",
            "SELECT * FROM t JOIN u USING (k)",
            "SELECT t.k, u.w FROM t FULL JOIN u ON t.k = u.k AND t.v < u.w",
            "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
            "SELECT * FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
            "SELECT k, CASE WHEN v > 1 THEN upper(s) ELSE NULL END AS c FROM t WHERE s LIKE '%a' ESCAPE '!'",
            "SELECT unnest(l) AS e FROM (SELECT array_agg(k) AS l FROM t GROUP BY s)",
            "SELECT s, k, sum(v) AS x FROM t GROUP BY GROUPING SETS ((s), (s, k), ())",
            "SELECT v FROM t WHERE v > (SELECT avg(w) FROM u)",
        ] {
            let plan = optimised(sql).await;
            judge::check(&plan).unwrap_or_else(|error| panic!("{sql}: {error}"));
            let plan = scans::over_listings(&plan, 4).unwrap();
            encode(&plan).unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
    }

    #[tokio::test]
    async fn what_gets_lost_on_the_wire_is_found_without_knowing_of_it() {
        for sql in [
            "SELECT k FROM t INTERSECT SELECT k FROM u",
            "SELECT k FROM t EXCEPT SELECT k FROM u",
            "SELECT * FROM t JOIN u ON t.k IS NOT DISTINCT FROM u.k",
            "SELECT * FROM t WHERE k NOT IN (SELECT k FROM u)",
        ] {
            let plan = optimised(sql).await;
            let error = encode(&scans::over_listings(&plan, 4).unwrap()).unwrap_err();
            assert!(error.message().contains("changes its meaning"), "{sql}: {error}");
            // The first look says it in the words of SQL.
            let error = judge::check(&plan).unwrap_err();
            assert!(error.message().contains("NULL"), "{sql}: {error}");
        }
    }

    #[tokio::test]
    async fn what_executors_answer_wrongly_or_never_is_refused() {
        for (sql, why) in [
            ("SELECT k FROM t OFFSET 2", "OFFSET without LIMIT"),
            ("SELECT unnest(string_to_array(s, ' ')) AS w FROM t", "string_to_array()"),
        ] {
            let error = judge::check(&optimised(sql).await).unwrap_err();
            assert!(error.message().contains(why), "{sql}: {error}");
        }
    }

    #[tokio::test]
    async fn joins_that_lose_rows_on_several_machines_are_refused() {
        for kind in ["LEFT", "RIGHT", "FULL"] {
            let sql = format!("SELECT * FROM t {kind} JOIN u ON t.v < u.w");
            let error = judge::check(&optimised(&sql).await).unwrap_err();
            assert!(error.message().contains("without an equality"), "{sql}: {error}");
        }
        judge::check(&optimised("SELECT * FROM t JOIN u ON t.v < u.w").await).unwrap();
    }
}
