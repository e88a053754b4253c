//! A plan's identity: its form before the rewrite, and the digests that shards, caches and workers
//! compare.

use std::sync::Arc;

use datafusion::physical_plan::{ExecutionPlan, displayable};

use super::plan::PlanOptions;
use super::query::Query;
use super::staged::{STAGE_SCHEMA, StagedPart};
use crate::Result;
use crate::exec::{Rewritten, rewrite, write_plan};
use crate::fingerprint::Form;

/// A plan's form before the rewrite.
#[derive(Debug)]
pub(super) struct Shape {
    /// As people read it.
    text: String,
    /// SHA-256 of its form.
    digest: [u8; 32],
}

impl Shape {
    /// As people read it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

/// A row-local plan, and its form before the rewrite.
pub(super) type Classified = (Rewritten, Shape);

pub(super) async fn classify(query: &Query) -> Result<Classified> {
    match query.take_classified() {
        Some(found) => Ok(found),
        None => classify_planned(query, query.physical_plan().await?),
    }
}

pub(super) fn classify_planned(
    query: &Query,
    physical: Arc<dyn ExecutionPlan>,
) -> Result<Classified> {
    // A stage that is built again lies elsewhere, and is the same.
    let stable = |text: &str| {
        let replaced = |text: String, part: &StagedPart| text.replace(&part.folder, part.digest());
        query.parts().iter().fold(text.to_owned(), replaced)
    };
    let mut form = Form::new("physical plan");
    write_plan(&mut form, "root", &physical, &stable)?;
    let text = stable(&displayable(physical.as_ref()).indent(false).to_string());
    Ok((rewrite(physical)?, Shape { text, digest: form.digest() }))
}

impl PlanOptions {
    fn write(&self, form: &mut Form) {
        form.number("split bytes", self.split_bytes);
        form.optional_number("split rows", self.split_rows).flag("explicit", self.explicit);
        form.optional_text("without", self.without.as_deref());
    }
}

/// A digest of a query's plan by splits, independent of the files that this process has.
pub(super) fn shape_digest(query: &Query, options: &PlanOptions, shape: &Shape) -> Result<String> {
    let mut form = Form::new("shape");
    write_planning(&mut form, query, options, shape)?;
    form.list("functions", query.functions(), |form, (name, digest)| {
        form.text("name", &name).text("digest", &digest);
        Ok(())
    })?;
    Ok(form.fingerprint())
}

/// A digest of the plan, the identities of all pinned files and the split options.
pub(super) fn fingerprint(query: &Query, options: &PlanOptions, shape: &Shape) -> Result<String> {
    let mut form = Form::new("plan");
    write_planning(&mut form, query, options, shape)?;
    query.write_tables(&mut form)?;
    Ok(form.fingerprint())
}

fn write_planning(
    form: &mut Form,
    query: &Query,
    options: &PlanOptions,
    shape: &Shape,
) -> Result<()> {
    form.text("program", env!("CARGO_PKG_VERSION")).text("sql", query.sql());
    form.bytes("plan", &shape.digest);
    form.nested("options", "split options", |form| {
        options.write(form);
        Ok(())
    })?;
    Ok(())
}

impl Query {
    /// Writes the content of all that it reads into a form.
    ///
    /// # Errors
    /// `Config` where a column's type has no form.
    pub(super) fn write_tables(&self, form: &mut Form) -> Result<()> {
        form.list("tables", self.tables(), |form, ((schema, name), registered)| {
            form.text("schema", schema).text("name", name);
            // The name of a stage has the digest of its rows.
            if schema == STAGE_SCHEMA { Ok(()) } else { registered.write(form) }
        })?;
        Ok(())
    }
}
