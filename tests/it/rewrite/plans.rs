//! Plans before and after the rewrite.

use std::sync::Arc;

use datafusion::physical_plan::displayable;
use insta::assert_snapshot;
use tempfile::TempDir;
use tensorquery::session::Session;

use super::super::support::{assert_same_rows, block_on, plan};
use super::tables;

/// The plan before and after, without the directory's name; its rows are those of DataFusion.
fn show((directory, session): &(TempDir, Arc<Session>), sql: &str) -> String {
    let plan = plan(session, sql).unwrap();
    let after = displayable(plan.physical().as_ref()).indent(false).to_string();
    let here = format!("{}/", directory.path().display());
    let text = format!("{}--\n{after}", plan.shape());
    assert_same_rows(session, sql);
    text.replace(&here, "").replace(here.trim_start_matches('/'), "")
}

macro_rules! snapshot {
    ($name:ident, $sql:literal, @$plan:literal) => {
        #[test]
        fn $name() {
            assert_snapshot!(show(&tables(), $sql), @$plan);
        }
    };
}

snapshot!(a_filter_goes_into_the_scan, "SELECT id, t FROM big WHERE id > 30 AND k = 1", @r"
    DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, t], file_type=parquet, predicate=id@0 > 30 AND k@1 = 1, pruning_predicate=id_null_count@1 != row_count@2 AND id_max@0 > 30 AND k_null_count@5 != row_count@2 AND k_min@3 <= 1 AND 1 <= k_max@4, required_guarantees=[k in (1)]
    --
    SplitScanExec: splits=5, format=parquet, files=2, predicate=id@0 > 30 AND k@1 = 1, materialisation=late
    ");
snapshot!(expressions_go_into_the_scan, "SELECT id * 2 AS twice, upper(t) AS t FROM big", @r"
    DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[checked_multiply(id@0, 2) as twice, upper(t@2) as t], file_type=parquet
    --
    SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(inner_join_with_the_small_side_on_the_right,
    "SELECT b.id, s.name FROM big AS b JOIN small AS s ON b.k = s.k", @r"
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(k@0, k@1)], projection=[name@1, id@2]
        DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(k@0, k@1)], projection=[name@1, id@2]
        BuildSideExec: collected once
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(inner_join_with_the_small_side_on_the_left,
    "SELECT b.id, s.name FROM small AS s JOIN big AS b ON b.k = s.k", @r"
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(k@0, k@1)], projection=[name@1, id@2]
        DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(k@0, k@1)], projection=[name@1, id@2]
        BuildSideExec: collected once
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(left_join_is_swapped,
    "SELECT b.id, s.name FROM big AS b LEFT JOIN small AS s ON b.k = s.k AND b.id > 5", @r"
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      HashJoinExec: mode=CollectLeft, join_type=Right, on=[(k@0, k@1)], filter=id@0 > 5, projection=[name@1, id@2]
        DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      HashJoinExec: mode=CollectLeft, join_type=Right, on=[(k@0, k@1)], filter=id@0 > 5, projection=[name@1, id@2]
        BuildSideExec: collected once
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(left_join_drives_from_the_left_even_where_it_is_small,
    "SELECT s.name, b.id FROM small AS s LEFT JOIN big AS b ON b.k = s.k", @r"
    HashJoinExec: mode=CollectLeft, join_type=Left, on=[(k@0, k@1)], projection=[name@1, id@2]
      DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
      DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    HashJoinExec: mode=CollectLeft, join_type=Right, on=[(k@1, k@0)], projection=[name@3, id@0]
      BuildSideExec: collected once
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
      SplitScanExec: splits=1, format=parquet, files=1
    ");
snapshot!(right_join,
    "SELECT b.id, s.name FROM small AS s RIGHT JOIN big AS b ON b.k = s.k", @r"
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      HashJoinExec: mode=CollectLeft, join_type=Right, on=[(k@0, k@1)], projection=[name@1, id@2]
        DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      HashJoinExec: mode=CollectLeft, join_type=Right, on=[(k@0, k@1)], projection=[name@1, id@2]
        BuildSideExec: collected once
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(semi_join, "SELECT id FROM big WHERE k IN (SELECT k FROM small)", @r"
    ProjectionExec: expr=[id@0 as id]
      HashJoinExec: mode=CollectLeft, join_type=RightSemi, on=[(__s1_0@0, k@1)]
        DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k@0 as __s1_0], file_type=parquet
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@0 as id]
      HashJoinExec: mode=CollectLeft, join_type=RightSemi, on=[(__s1_0@0, k@1)]
        BuildSideExec: collected once
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k@0 as __s1_0], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(exists,
    "SELECT id FROM big WHERE EXISTS (SELECT 1 FROM small WHERE small.k = big.k)", @r"
    ProjectionExec: expr=[id@0 as id]
      HashJoinExec: mode=CollectLeft, join_type=RightSemi, on=[(__s2_1@0, k@1)]
        DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k@0 as __s2_1], file_type=parquet
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@0 as id]
      HashJoinExec: mode=CollectLeft, join_type=RightSemi, on=[(__s2_1@0, k@1)]
        BuildSideExec: collected once
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k@0 as __s2_1], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(anti_join,
    "SELECT id FROM big WHERE NOT EXISTS (SELECT 1 FROM small WHERE small.k = big.k)", @r"
    ProjectionExec: expr=[id@0 as id]
      HashJoinExec: mode=CollectLeft, join_type=RightAnti, on=[(__s2_1@0, k@1)]
        DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k@0 as __s2_1], file_type=parquet
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@0 as id]
      HashJoinExec: mode=CollectLeft, join_type=RightAnti, on=[(__s2_1@0, k@1)]
        BuildSideExec: collected once
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k@0 as __s2_1], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(mark_join,
    "SELECT id FROM big WHERE id < 3 OR EXISTS (SELECT 1 FROM small WHERE small.k = big.k)", @r"
    ProjectionExec: expr=[id@0 as id]
      FilterExec: id@0 < 3 OR mark@1
        ProjectionExec: expr=[id@0 as id, mark@2 as mark]
          HashJoinExec: mode=CollectLeft, join_type=RightMark, on=[(__s2_1@1, k@1)]
            DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[1 as __s2_0, k@0 as __s2_1], file_type=parquet
            DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@0 as id]
      FilterExec: id@0 < 3 OR mark@1
        ProjectionExec: expr=[id@0 as id, mark@2 as mark]
          HashJoinExec: mode=CollectLeft, join_type=RightMark, on=[(__s2_1@1, k@1)]
            BuildSideExec: collected once
              DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[1 as __s2_0, k@0 as __s2_1], file_type=parquet
            SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(join_by_an_inequality,
    "SELECT b.id, s.name FROM big AS b LEFT JOIN small AS s ON b.k < s.k", @r"
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      NestedLoopJoinExec: join_type=Right, filter=k@0 < k@1, projection=[name@1, id@2]
        DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      NestedLoopJoinExec: join_type=Right, filter=k@0 < k@1, projection=[name@1, id@2]
        BuildSideExec: collected once
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k, name], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(cross_join, "SELECT b.id, s.name FROM big AS b CROSS JOIN small AS s", @r"
    CrossJoinExec
      DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id], file_type=parquet
      DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[name], file_type=parquet
    --
    ProjectionExec: expr=[id@1 as id, name@0 as name]
      CrossJoinExec
        BuildSideExec: collected once
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[name], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(union_all,
    "SELECT id, k FROM big WHERE id > 70 UNION ALL SELECT id, k FROM other", @r"
    UnionExec
      DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet, predicate=id@0 > 70, pruning_predicate=id_null_count@1 != row_count@2 AND id_max@0 > 70, required_guarantees=[]
      DataSourceExec: file_groups={1 group: [[other/c.parquet]]}, projection=[id, k], file_type=parquet
    --
    UnionExec
      SplitScanExec: splits=1, format=parquet, files=2, predicate=id@0 > 70, materialisation=late
      SplitScanExec: splits=4, format=parquet, files=1
    ");
snapshot!(self_join_knows_its_scans_apart,
    "SELECT a.id, b.t FROM big AS a JOIN big AS b ON a.id = b.id WHERE b.id < 20", @r"
    HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(id@0, id@0)], projection=[id@0, t@2]
      DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id], file_type=parquet, predicate=id@0 < 20, pruning_predicate=id_null_count@1 != row_count@2 AND id_min@0 < 20, required_guarantees=[]
      DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, t], file_type=parquet, predicate=id@0 < 20, pruning_predicate=id_null_count@1 != row_count@2 AND id_min@0 < 20, required_guarantees=[]
    --
    HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(id@0, id@0)], projection=[id@0, t@2]
      BuildSideExec: collected once
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id], file_type=parquet, predicate=id@0 < 20, pruning_predicate=id_null_count@1 != row_count@2 AND id_min@0 < 20, required_guarantees=[]
      SplitScanExec: splits=2, format=parquet, files=2, predicate=id@0 < 20, materialisation=late
    ");
snapshot!(union_all_in_the_build_side_is_read_in_order,
    "SELECT b.id, s.t FROM big AS b JOIN (SELECT id, t FROM other UNION ALL SELECT k, name FROM small) \
     AS s ON b.id = s.id", @r"
    HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(id@0, id@0)], projection=[id@0, t@2]
      DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id], file_type=parquet
      UnionExec
        DataSourceExec: file_groups={1 group: [[other/c.parquet]]}, projection=[id, t], file_type=parquet
        DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k@0 as id, name@1 as t], file_type=parquet
    --
    HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(id@0, id@0)], projection=[id@2, t@1]
      BuildSideExec: collected once
        UnionExec
          DataSourceExec: file_groups={1 group: [[other/c.parquet]]}, projection=[id, t], file_type=parquet
          DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k@0 as id, name@1 as t], file_type=parquet
      SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(an_aggregate_in_the_build_side_runs_once,
    "SELECT b.id, m.top FROM big AS b JOIN (SELECT k, max(id) AS top FROM other GROUP BY k) AS m \
     ON b.k = m.k", @r"
    ProjectionExec: expr=[id@1 as id, top@0 as top]
      HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(k@0, k@1)], projection=[top@1, id@2]
        ProjectionExec: expr=[k@0 as k, max(other.id)@1 as top]
          AggregateExec: mode=Single, gby=[k@1 as k], aggr=[max(other.id)]
            DataSourceExec: file_groups={1 group: [[other/c.parquet]]}, projection=[id, k], file_type=parquet
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, k], file_type=parquet
    --
    ProjectionExec: expr=[id@1 as id, top@0 as top]
      HashJoinExec: mode=CollectLeft, join_type=Inner, on=[(k@0, k@1)], projection=[top@1, id@2]
        BuildSideExec: collected once
          ProjectionExec: expr=[k@0 as k, max(other.id)@1 as top]
            AggregateExec: mode=Single, gby=[k@1 as k], aggr=[max(other.id)]
              DataSourceExec: file_groups={1 group: [[other/c.parquet]]}, projection=[id, k], file_type=parquet
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(a_scalar_subquery_is_a_build_side,
    "SELECT id FROM big WHERE id > (SELECT max(k) + 60 FROM small)", @r"
    NestedLoopJoinExec: join_type=Inner, filter=id@0 > __s1_0@1, projection=[id@1]
      ProjectionExec: expr=[checked_add(max(small.k)@0, 60) as __s1_0]
        GlobalLimitExec: skip=0, fetch=1
          AggregateExec: mode=Single, gby=[], aggr=[max(small.k)]
            DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k], file_type=parquet
      DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id], file_type=parquet
    --
    NestedLoopJoinExec: join_type=Inner, filter=id@0 > __s1_0@1, projection=[id@1]
      BuildSideExec: collected once
        ProjectionExec: expr=[checked_add(max(small.k)@0, 60) as __s1_0]
          GlobalLimitExec: skip=0, fetch=1
            AggregateExec: mode=Single, gby=[], aggr=[max(small.k)]
              DataSourceExec: file_groups={1 group: [[small.parquet]]}, projection=[k], file_type=parquet
      SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(unnest, "SELECT id, unnest(l) AS item FROM big", @r"
    ProjectionExec: expr=[id@0 as id, __unnest_placeholder(big.l,depth=1)@1 as item]
      UnnestExec
        DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id, l@3 as __unnest_placeholder(big.l)], file_type=parquet
    --
    ProjectionExec: expr=[id@0 as id, __unnest_placeholder(big.l,depth=1)@1 as item]
      UnnestExec
        SplitScanExec: splits=8, format=parquet, files=2
    ");
snapshot!(a_cte_is_its_query,
    "WITH few AS (SELECT id, k FROM big WHERE id < 12) SELECT id + k AS both FROM few WHERE k > 0", @r"
    DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[checked_add(id@0, k@1) as both], file_type=parquet, predicate=k@1 > 0 AND id@0 < 12, pruning_predicate=k_null_count@1 != row_count@2 AND k_max@0 > 0 AND id_null_count@4 != row_count@2 AND id_min@3 < 12, required_guarantees=[]
    --
    SplitScanExec: splits=2, format=parquet, files=2, predicate=k@1 > 0 AND id@0 < 12, materialisation=late
    ");
snapshot!(where_false_has_no_splits, "SELECT id FROM big WHERE false", @r"
    EmptyExec
    --
    SplitScanExec: splits=0
    ");

#[test]
fn a_view_is_its_query() {
    let tables = tables();
    block_on(tables.1.register_view("few", "SELECT id, k FROM big WHERE id < 12")).unwrap();
    assert_snapshot!(show(&tables, "SELECT id FROM few WHERE k > 0"), @r"
    DataSourceExec: file_groups={1 group: [[big/a.parquet, big/b.parquet]]}, projection=[id], file_type=parquet, predicate=k@1 > 0 AND id@0 < 12, pruning_predicate=k_null_count@1 != row_count@2 AND k_max@0 > 0 AND id_null_count@4 != row_count@2 AND id_min@3 < 12, required_guarantees=[]
    --
    SplitScanExec: splits=2, format=parquet, files=2, predicate=k@1 > 0 AND id@0 < 12, materialisation=late
    ");
}
