//! Tables and joins: clauses beside a table that the planner ignores, refused by name.

use datafusion::sql::sqlparser::ast::{
    Join, JoinConstraint, JoinOperator, TableAlias, TableAliasColumnDef, TableFactor,
    TableWithJoins,
};

use super::{MARK, refused};
use crate::{Error, Result};

/// Refuses clauses beside a table that the planner would ignore.
///
/// # Errors
/// `Query` naming the clause, and an alternative.
pub(super) fn check(factor: &TableFactor) -> Result<()> {
    match factor {
        TableFactor::Table {
            name,
            alias,
            // There are no table functions, and an unknown one is an error.
            args: _,
            with_hints,
            version,
            with_ordinality,
            partitions,
            json_path,
            // Taken into the table's name.
            sample: _,
            index_hints,
        } => {
            let clause = match () {
                () if !with_hints.is_empty() => "WITH (hints)",
                () if version.is_some() => "AS OF in this form",
                () if *with_ordinality => "WITH ORDINALITY",
                () if !partitions.is_empty() => "PARTITION (…)",
                () if json_path.is_some() => "a path into a table's JSON",
                () if !index_hints.is_empty() => "USE, IGNORE or FORCE INDEX",
                () => return check_alias(alias.as_ref()),
            };
            let instead = match () {
                () if !partitions.is_empty() => "write WHERE over the partition's columns",
                () if version.is_some() => "write FOR VERSION AS OF n, or FOR TIMESTAMP AS OF '…'",
                () if *with_ordinality => "write row_number() OVER (ORDER BY …)",
                () => "leave it out",
            };
            Err(refused(&format!("{clause} behind the table {name}"), instead))
        }
        // Samples of subqueries are refused where samples are taken.
        TableFactor::Derived { lateral: _, subquery: _, alias, sample: _ } => {
            check_alias(alias.as_ref())
        }
        TableFactor::Function { lateral: _, name: _, args: _, alias } => {
            check_alias(alias.as_ref())
        }
        TableFactor::UNNEST {
            alias,
            array_exprs: _,
            with_offset,
            with_offset_alias,
            with_ordinality,
        } => {
            if *with_offset || with_offset_alias.is_some() || *with_ordinality {
                return Err(refused(
                    "UNNEST … WITH ORDINALITY or WITH OFFSET",
                    "unnest range(1, cardinality(list) + 1) beside the list in one SELECT",
                ));
            }
            check_alias(alias.as_ref())
        }
        TableFactor::NestedJoin { table_with_joins, alias } => {
            check_joins(table_with_joins)?;
            match alias {
                Some(alias) if alias.name.value.starts_with(MARK) => Ok(()),
                alias => check_alias(alias.as_ref()),
            }
        }
        TableFactor::TableFunction { expr, alias: _ } => {
            Err(refused(&format!("TABLE({expr})"), "register its rows as a table"))
        }
        TableFactor::JsonTable { .. } => Err(no_table("JSON_TABLE")),
        TableFactor::OpenJsonTable { .. } => Err(no_table("OPENJSON")),
        TableFactor::XmlTable { .. } => Err(no_table("XMLTABLE")),
        TableFactor::SemanticView { .. } => Err(no_table("SEMANTIC_VIEW")),
        TableFactor::MatchRecognize { .. } => {
            Err(refused("MATCH_RECOGNIZE", "write window functions (lag, lead, sum … OVER)"))
        }
        TableFactor::Pivot { .. } => {
            Err(refused("PIVOT", "write sum(x) FILTER (WHERE key = 'a') AS a, … with GROUP BY"))
        }
        TableFactor::Unpivot { .. } => {
            Err(refused("UNPIVOT", "write one SELECT for each column, with UNION ALL"))
        }
    }
}

fn no_table(what: &str) -> Error {
    refused(what, "register its rows as a table")
}

/// Refuses parts of a relation's alias that the planner ignores.
pub(super) fn check_alias(alias: Option<&TableAlias>) -> Result<()> {
    let Some(TableAlias { explicit: _, name, columns }) = alias else { return Ok(()) };
    for TableAliasColumnDef { name: column, data_type } in columns {
        if let Some(data_type) = data_type {
            return Err(refused(
                &format!("a type beside a column's name, {name} ({column} {data_type}),"),
                "write CAST(… AS …) in the SELECT",
            ));
        }
    }
    Ok(())
}

/// Words before JOIN that the parser takes for another name of the table before them.
const KINDS: [&str; 5] = ["all", "any", "asof", "paste", "positional"];

/// Refuses a kind of join that the parser takes for another name of a table: `FROM a POSITIONAL
/// JOIN b`.
pub(super) fn check_joins(tables: &TableWithJoins) -> Result<()> {
    let TableWithJoins { relation, joins } = tables;
    let before = std::iter::once(relation).chain(joins.iter().map(|join| &join.relation));
    for (relation, join) in before.zip(joins) {
        let alias = match relation {
            TableFactor::Table { alias: Some(alias), .. }
            | TableFactor::Derived { alias: Some(alias), .. } => alias,
            _ => continue,
        };
        let kind = alias.name.value.to_lowercase();
        let is_name = alias.explicit || alias.name.quote_style.is_some();
        // Behind a comma or CROSS the word before JOIN is no kind.
        if !is_name
            && KINDS.contains(&&*kind)
            && !matches!(join.join_operator, JoinOperator::CrossJoin(_))
        {
            let instead = match &*kind {
                "positional" | "paste" => {
                    "write a JOIN by row_number() OVER (ORDER BY …) of both sides".to_owned()
                }
                "asof" => "write JOIN … ON … with QUALIFY row_number() OVER (…) = 1".to_owned(),
                _ => format!(
                    "leave {} out, or write AS before it where it names the table",
                    kind.to_uppercase()
                ),
            };
            return Err(refused(&format!("{} JOIN", kind.to_uppercase()), &instead));
        }
    }
    joins.iter().try_for_each(check_join)
}

/// The text of a join.
fn words(operator: &JoinOperator) -> &'static str {
    match operator {
        JoinOperator::Inner(_) => "INNER JOIN",
        JoinOperator::Left(_) | JoinOperator::LeftOuter(_) => "LEFT JOIN",
        JoinOperator::Right(_) | JoinOperator::RightOuter(_) => "RIGHT JOIN",
        JoinOperator::FullOuter(_) => "FULL JOIN",
        JoinOperator::LeftSemi(_) | JoinOperator::Semi(_) => "SEMI JOIN",
        JoinOperator::LeftAnti(_) | JoinOperator::Anti(_) => "ANTI JOIN",
        JoinOperator::RightSemi(_) => "RIGHT SEMI JOIN",
        JoinOperator::RightAnti(_) => "RIGHT ANTI JOIN",
        _ => "JOIN",
    }
}

/// Refuses joins that the planner does not know, and clauses that it ignores.
pub(super) fn check_join(join: &Join) -> Result<()> {
    use JoinConstraint::{Natural, None, On, Using};
    let Join { relation: _, global, join_operator } = join;
    if *global {
        return Err(refused("GLOBAL JOIN", "leave GLOBAL out"));
    }
    let constraint = match join_operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::LeftSemi(constraint)
        | JoinOperator::RightSemi(constraint)
        | JoinOperator::LeftAnti(constraint)
        | JoinOperator::RightAnti(constraint)
        | JoinOperator::Semi(constraint)
        | JoinOperator::Anti(constraint) => constraint,
        JoinOperator::CrossJoin(None) => return Ok(()),
        JoinOperator::CrossJoin(_) => {
            return Err(refused("CROSS JOIN with a condition", "write JOIN … ON"));
        }
        JoinOperator::StraightJoin(_) => return Err(refused("STRAIGHT_JOIN", "write JOIN")),
        JoinOperator::CrossApply | JoinOperator::OuterApply => {
            return Err(refused("APPLY", "write JOIN LATERAL (SELECT …) ON true"));
        }
        JoinOperator::AsOf { match_condition: _, constraint: _ } => {
            return Err(refused(
                "ASOF JOIN in this form",
                "write JOIN … ON … AND u.time <= t.time, with QUALIFY row_number() OVER (PARTITION BY t.id ORDER BY u.time \
                 DESC) = 1",
            ));
        }
    };
    match constraint {
        On(_) | Using(_) | Natural => Ok(()),
        None => Err(refused(
            &format!("{} without ON or USING", words(join_operator)),
            "write ON or USING, or CROSS JOIN for each row beside each",
        )),
    }
}
