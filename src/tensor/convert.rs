//! From portions of Arrow data to one finished batch: measure, allocate once, write each value
//! once.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::batch_slice::BatchSlice;
use super::block::{Block, Lent, Slot};
use super::column::{Column, ColumnSlice, Kind};
use super::nulls::write_mask;
use super::options::{TensorOptions, Value};
use super::plan::Plan;
use super::spec::OutputSpec;
use super::stack::StackParts;
use super::text::TextColumn;
use crate::matrix::{MatrixColumns, MatrixSchema, places};
use crate::{Error, Result};

/// Converts batches of one schema; made once per run.
#[derive(Debug)]
pub struct Converter {
    schema: SchemaRef,
    plan: Plan,
    lends: bool,
}

/// A finished batch: one block of memory for all numbers, and the strings beside it.
#[derive(Debug)]
pub struct TensorBatch {
    rows: usize,
    block: Block,
    slots: Vec<Slot>,
    /// By slot, where any is lent.
    lent: Vec<Option<Lent>>,
    texts: Vec<TextColumn>,
    categories: Vec<Vec<Value>>,
}

impl Converter {
    /// Plans the conversion of batches with `schema`.
    ///
    /// # Errors
    ///
    /// [`Config`](crate::ErrorKind::Config) for an option that names an unknown column or does not
    /// fit its type, and for two outputs of one name;
    /// [`UnsupportedType`](crate::ErrorKind::UnsupportedType) for a column that has no tensor form.
    pub fn try_new(schema: &SchemaRef, options: &TensorOptions) -> Result<Self> {
        Ok(Self { schema: schema.clone(), plan: Plan::try_new(schema, options)?, lends: false })
    }

    /// Hands out the memory of decoded columns if nothing else holds it and it has its final form;
    /// otherwise all numbers are in the block.
    #[must_use]
    pub fn lending(mut self) -> Self {
        self.lends = true;
        self
    }

    /// The columns of the stacks that may arrive as matrices, since their values already have the
    /// stack's type.
    pub fn matrices(&self) -> Vec<MatrixColumns> {
        self.plan.matrices()
    }

    /// A conversion for rows that have some of the [`matrices`](Self::matrices) in place of their
    /// columns.
    #[must_use]
    pub fn of_matrices(mut self, rows: MatrixSchema) -> Self {
        let (left, first) = places(self.schema.fields().len(), &rows.matrices);
        self.plan.with_matrices(&rows.matrices, &left, first, &rows.schema);
        Self { schema: rows.schema, ..self }
    }

    /// The outputs of every batch, in the order of the dictionary: columns, each with its mask
    /// after it, then stacks.
    pub fn outputs(&self) -> &[OutputSpec] {
        &self.plan.outputs
    }

    /// The schema of the pieces.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Gathers `pieces`, in order, into one batch.
    ///
    /// # Errors
    ///
    /// As for [`convert_portions`](Self::convert_portions).
    pub fn convert(&self, pieces: &[RecordBatch]) -> Result<TensorBatch> {
        let portions: Vec<BatchSlice> = pieces.iter().cloned().map(BatchSlice::from).collect();
        self.convert_portions(&portions)
    }

    /// Gathers `portions`, in order, into one batch.
    ///
    /// # Errors
    ///
    /// [`Data`](crate::ErrorKind::Data) for nulls that the policy does not cover, decimals beyond
    /// int64, lists beyond their max_length, values that are no category, and portions of another
    /// schema.
    pub fn convert_portions(&self, portions: &[BatchSlice]) -> Result<TensorBatch> {
        portions.iter().try_for_each(|portion| self.check_schema(portion.schema()))?;
        let rows = portions.iter().map(BatchSlice::num_rows).sum();
        let plan = &self.plan;
        let columns: Vec<Vec<ColumnSlice>> = plan
            .columns
            .iter()
            .map(|column| column.parts_in_place(portions))
            .collect::<Result<_>>()?;
        // A stack's tiles go through many columns at once, of which no cache would hold whole
        // windows.
        let stacks: Vec<StackParts> =
            plan.stacks.iter().map(|stack| stack.parts(portions)).collect::<Result<_>>()?;

        let mut counts = vec![rows; plan.slots.len()];
        for (column, parts) in plan.columns.iter().zip(&columns) {
            column.measure(parts, rows, &mut counts)?;
        }
        for (stack, parts) in plan.stacks.iter().zip(&stacks) {
            stack.check(parts)?;
            let cells = rows * stack.columns.len();
            counts[stack.slot] = cells;
            if let Some(mask) = stack.mask {
                counts[mask] = cells;
            }
        }

        let mut lent: Vec<Option<Lent>> = Vec::new();
        if self.lends {
            lent.resize_with(counts.len(), || None);
            let columns = plan.columns.iter().zip(&columns);
            let columns = columns.filter_map(|(column, parts)| column.lent(parts));
            let stacks = plan.stacks.iter().zip(&stacks);
            let stacks = stacks.filter_map(|(stack, parts)| stack.lent(parts));
            for (slot, memory) in columns.chain(stacks) {
                lent[slot] = Some(memory);
                counts[slot] = 0;
            }
        }

        let wanted: Vec<_> = plan.slots.iter().copied().zip(counts).collect();
        let (block, mut slots) = Block::allocate(&wanted, plan.fills_slots()).ok_or_else(|| {
            Error::data(format!(
                "a batch of {rows} rows takes more memory than there is; choose a smaller batch_size, or in \
                 `pad` a lower max_length"
            ))
        })?;
        for (slot, memory) in slots.iter_mut().zip(&lent) {
            if let Some(memory) = memory {
                (slot.offset, slot.count) = (0, memory.as_slice().len() / slot.dtype.size());
            }
        }
        let texts = Vec::with_capacity(plan.texts);
        let categories = Vec::with_capacity(plan.categories);
        let mut batch = TensorBatch { rows, block, slots, lent, texts, categories };
        for (column, parts) in plan.columns.iter().zip(columns) {
            column.write(parts, &mut batch)?;
        }
        for (stack, parts) in plan.stacks.iter().zip(&stacks) {
            let is_lent = batch.lent.get(stack.slot).is_some_and(Option::is_some);
            stack.write(parts, is_lent, &batch.slots, &mut batch.block)?;
        }
        Ok(batch)
    }

    fn check_schema(&self, found: &SchemaRef) -> Result<()> {
        if std::sync::Arc::ptr_eq(found, &self.schema) {
            return Ok(());
        }
        if found.fields().len() != self.schema.fields().len() {
            return Err(Error::data(format!(
                "a batch has {} columns, its schema was planned with {}; pieces of one batch need one \
                 schema",
                found.fields().len(),
                self.schema.fields().len()
            )));
        }
        for (found, planned) in found.fields().iter().zip(self.schema.fields()) {
            // Names, nullability and metadata inside the types play no part in the memory layout.
            if !found.data_type().equals_datatype(planned.data_type()) {
                return Err(Error::data(format!(
                    "column {:?} arrived as {}, but its schema says {}; cast it in SQL",
                    planned.name(),
                    found.data_type(),
                    planned.data_type()
                )));
            }
        }
        Ok(())
    }
}

impl Column {
    /// Checks the nulls, and says how many elements each slot takes where that is not the row
    /// count.
    fn measure(&self, parts: &[ColumnSlice], rows: usize, counts: &mut [usize]) -> Result<()> {
        match &self.kind {
            Kind::Fixed { fixed, slot } => {
                fixed.check(self, parts)?;
                counts[*slot] = rows.checked_mul(fixed.width).ok_or_else(|| {
                    Error::data(format!(
                        "column {:?} of {rows} rows exceeds the address space; choose a smaller \
                         batch_size",
                        self.name
                    ))
                })?;
                Ok(())
            }
            Kind::List(list) => list.measure(self, parts, counts),
            Kind::Codes { codes, .. } => self.check_rows(parts, codes.patch.is_some()),
            Kind::Text { patch } => self.check_rows(parts, patch.is_some()),
            Kind::Struct { covers_nulls } => self.check_rows(parts, *covers_nulls),
        }
    }

    fn write(&self, parts: Vec<ColumnSlice>, batch: &mut TensorBatch) -> Result<()> {
        let TensorBatch { block, slots, lent, texts, categories, .. } = batch;
        if let Some(mask) = self.mask {
            let mut rest = block.slot_mut(slots[mask]);
            for part in &parts {
                let (front, after) = rest.split_at_mut(part.rows());
                write_mask(front, part.nulls.as_ref());
                rest = after;
            }
        }
        match &self.kind {
            Kind::Fixed { slot, .. } if lent.get(*slot).is_some_and(Option::is_some) => {}
            Kind::Fixed { fixed, slot } => {
                let slot = slots[*slot];
                let row_bytes = fixed.width * slot.dtype.size();
                let mut rest = block.slot_mut(slot);
                for part in &parts {
                    let (front, after) = rest.split_at_mut(part.rows() * row_bytes);
                    fixed.write(self, part, 0, front)?;
                    rest = after;
                }
            }
            Kind::List(list) => list.write(self, &parts, slots, block)?,
            Kind::Codes { codes, slot } => {
                let found = codes.write(self, &parts, block.slot_mut(slots[*slot]))?;
                if !codes.is_fixed() {
                    categories.push(found);
                }
            }
            Kind::Text { patch } => texts.push(TextColumn::new(parts, patch.clone())),
            Kind::Struct { .. } => {}
        }
        Ok(())
    }
}

impl TensorBatch {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The memory of all slots.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Where each array lies in the block, by the slot numbers of the [`OutputSpec`]s.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The string columns, by the indices of the [`OutputSpec`]s.
    pub fn texts(&self) -> &[TextColumn] {
        &self.texts
    }

    /// The categories of the encoded columns, by the indices of the [`OutputSpec`]s.
    pub fn categories(&self) -> &[Vec<Value>] {
        &self.categories
    }

    /// The memory of slots that are not in the block, by slot; nothing where all are.
    pub fn lent(&self) -> &[Option<Lent>] {
        &self.lent
    }

    /// The block, and the memory of slots that are not in it; everything else of the batch is read
    /// before.
    pub fn into_memory(self) -> (Block, Vec<Option<Lent>>) {
        (self.block, self.lent)
    }
}
