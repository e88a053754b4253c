//! The options of DataFusion. `docs/engine.md` gives the reason for each.

use datafusion::prelude::SessionConfig;

use crate::Result;

/// Options with fixed values, on which right answers depend, even if the value is DataFusion's
/// default today.
pub(super) const SET: &[(&str, &str)] = &[
    ("datafusion.catalog.information_schema", "false"),
    ("datafusion.sql_parser.map_string_types_to_utf8view", "false"),
    ("datafusion.execution.batch_size", "8192"),
    ("datafusion.execution.target_partitions", "1"),
    ("datafusion.execution.skip_physical_aggregate_schema_check", "true"),
    ("datafusion.execution.split_file_groups_by_statistics", "false"),
    ("datafusion.execution.skip_partial_aggregation_probe_ratio_threshold", "1.1"),
    ("datafusion.execution.use_row_number_estimates_to_optimize_partitioning", "false"),
    ("datafusion.execution.enable_ansi_mode", "false"),
    ("datafusion.execution.parquet.pushdown_filters", "true"),
    ("datafusion.execution.parquet.pruning", "false"),
    ("datafusion.execution.parquet.enable_page_index", "false"),
    ("datafusion.execution.parquet.schema_force_view_types", "false"),
    ("datafusion.optimizer.enable_distinct_aggregation_soft_limit", "false"),
    ("datafusion.optimizer.enable_round_robin_repartition", "false"),
    ("datafusion.optimizer.enable_topk_aggregation", "false"),
    ("datafusion.optimizer.enable_window_limits", "false"),
    ("datafusion.optimizer.enable_topk_dynamic_filter_pushdown", "false"),
    ("datafusion.optimizer.enable_join_dynamic_filter_pushdown", "false"),
    ("datafusion.optimizer.enable_aggregate_dynamic_filter_pushdown", "false"),
    ("datafusion.optimizer.enable_dynamic_filter_pushdown", "false"),
    ("datafusion.optimizer.filter_null_join_keys", "false"),
    ("datafusion.optimizer.repartition_aggregations", "false"),
    ("datafusion.optimizer.repartition_joins", "false"),
    ("datafusion.optimizer.repartition_file_scans", "false"),
    ("datafusion.optimizer.repartition_windows", "false"),
    ("datafusion.optimizer.skip_failed_rules", "false"),
    ("datafusion.optimizer.top_down_join_key_reordering", "false"),
    ("datafusion.optimizer.prefer_hash_join", "true"),
    ("datafusion.optimizer.enable_piecewise_merge_join", "false"),
    ("datafusion.optimizer.prefer_existing_union", "true"),
    ("datafusion.optimizer.enable_sort_pushdown", "false"),
    ("datafusion.optimizer.enable_leaf_expression_pushdown", "false"),
];

/// Options that are left at DataFusion's default, or that nothing here reads.
#[cfg(test)]
const LEFT: &[&str] = &[
    "datafusion.catalog.create_default_catalog_and_schema",
    "datafusion.catalog.default_catalog",
    "datafusion.catalog.default_schema",
    "datafusion.catalog.location",
    "datafusion.catalog.format",
    "datafusion.catalog.has_header",
    "datafusion.catalog.newlines_in_values",
    "datafusion.sql_parser.parse_float_as_decimal",
    "datafusion.sql_parser.enable_ident_normalization",
    "datafusion.sql_parser.enable_options_value_normalization",
    "datafusion.sql_parser.dialect",
    "datafusion.sql_parser.support_varchar_with_length",
    "datafusion.sql_parser.collect_spans",
    "datafusion.sql_parser.recursion_limit",
    "datafusion.sql_parser.default_null_ordering",
    "datafusion.execution.perfect_hash_join_small_build_threshold",
    "datafusion.execution.perfect_hash_join_min_key_density",
    "datafusion.execution.coalesce_batches",
    "datafusion.execution.collect_statistics",
    "datafusion.execution.time_zone",
    "datafusion.execution.planning_concurrency",
    "datafusion.execution.spill_compression",
    "datafusion.execution.sort_spill_reservation_bytes",
    "datafusion.execution.sort_in_place_threshold_bytes",
    "datafusion.execution.max_spill_file_size_bytes",
    "datafusion.execution.meta_fetch_concurrency",
    "datafusion.execution.minimum_parallel_output_files",
    "datafusion.execution.soft_max_rows_per_output_file",
    "datafusion.execution.max_buffered_batches_per_output_file",
    "datafusion.execution.listing_table_ignore_subdirectory",
    "datafusion.execution.listing_table_factory_infer_partitions",
    "datafusion.execution.enable_recursive_ctes",
    "datafusion.execution.keep_partition_by_columns",
    "datafusion.execution.skip_partial_aggregation_probe_rows_threshold",
    "datafusion.execution.enforce_batch_size_in_joins",
    "datafusion.execution.objectstore_writer_buffer_size",
    "datafusion.execution.parquet.skip_metadata",
    "datafusion.execution.parquet.metadata_size_hint",
    "datafusion.execution.parquet.reorder_filters",
    "datafusion.execution.parquet.force_filter_selections",
    "datafusion.execution.parquet.binary_as_string",
    "datafusion.execution.parquet.coerce_int96",
    "datafusion.execution.parquet.bloom_filter_on_read",
    "datafusion.execution.parquet.max_predicate_cache_size",
    "datafusion.execution.parquet.data_pagesize_limit",
    "datafusion.execution.parquet.write_batch_size",
    "datafusion.execution.parquet.writer_version",
    "datafusion.execution.parquet.skip_arrow_metadata",
    "datafusion.execution.parquet.compression",
    "datafusion.execution.parquet.dictionary_enabled",
    "datafusion.execution.parquet.dictionary_page_size_limit",
    "datafusion.execution.parquet.statistics_enabled",
    "datafusion.execution.parquet.max_row_group_size",
    "datafusion.execution.parquet.created_by",
    "datafusion.execution.parquet.column_index_truncate_length",
    "datafusion.execution.parquet.statistics_truncate_length",
    "datafusion.execution.parquet.data_page_row_count_limit",
    "datafusion.execution.parquet.encoding",
    "datafusion.execution.parquet.bloom_filter_on_write",
    "datafusion.execution.parquet.bloom_filter_fpp",
    "datafusion.execution.parquet.bloom_filter_ndv",
    "datafusion.execution.parquet.allow_single_file_parallelism",
    "datafusion.execution.parquet.maximum_parallel_row_group_writers",
    "datafusion.execution.parquet.maximum_buffered_record_batches_per_stream",
    "datafusion.optimizer.repartition_file_min_size",
    "datafusion.optimizer.allow_symmetric_joins_without_pruning",
    "datafusion.optimizer.preserve_file_partitions",
    "datafusion.optimizer.repartition_sorts",
    "datafusion.optimizer.subset_repartition_threshold",
    "datafusion.optimizer.prefer_existing_sort",
    "datafusion.optimizer.max_passes",
    "datafusion.optimizer.hash_join_single_partition_threshold",
    "datafusion.optimizer.hash_join_single_partition_threshold_rows",
    "datafusion.optimizer.hash_join_inlist_pushdown_max_size",
    "datafusion.optimizer.hash_join_inlist_pushdown_max_distinct_values",
    "datafusion.optimizer.default_filter_selectivity",
    "datafusion.optimizer.expand_views_at_output",
    "datafusion.explain.logical_plan_only",
    "datafusion.explain.physical_plan_only",
    "datafusion.explain.show_statistics",
    "datafusion.explain.show_sizes",
    "datafusion.explain.show_schema",
    "datafusion.explain.format",
    "datafusion.explain.tree_maximum_render_width",
    "datafusion.explain.analyze_level",
    "datafusion.format.safe",
    "datafusion.format.null",
    "datafusion.format.date_format",
    "datafusion.format.datetime_format",
    "datafusion.format.timestamp_format",
    "datafusion.format.timestamp_tz_format",
    "datafusion.format.time_format",
    "datafusion.format.duration_format",
    "datafusion.format.types_info",
];

/// All that are listed.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SET.iter().map(|(key, _)| *key).chain(LEFT.iter().copied())
}

/// The options of a session.
///
/// # Errors
/// An internal error where DataFusion does not have one of them.
pub fn session_config() -> Result<SessionConfig> {
    let mut config = SessionConfig::new();
    for (key, value) in SET {
        config.options_mut().set(key, value)?;
    }
    Ok(config)
}
