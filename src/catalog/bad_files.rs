//! The files of a table that are left out, where the user said so: unreadable files, and files
//! whose schema contradicts the others'.

use arrow::datatypes::Schema;
use futures::StreamExt;
use object_store::ObjectMeta;

use super::agree::same_positions;
use super::file_schema::{FileSchema, Infer};
use super::merge::merge_schemas;
use crate::Result;
use crate::formats::{Format, blame_content, concurrent_files};

/// Files that are left out, and why.
#[derive(Default)]
pub(super) struct BadFiles {
    /// Whether each of the files looked at last is left out.
    last: Vec<bool>,
    /// Names and reasons of all.
    listed: Vec<(String, String)>,
}

impl BadFiles {
    fn look_at(&mut self, files: impl IntoIterator<Item = Option<(String, String)>>) {
        self.last.clear();
        for file in files {
            self.last.push(file.is_some());
            self.listed.extend(file);
        }
    }

    /// Takes the files that were found last out of a list of all files.
    pub(super) fn take_out_one<T>(&self, items: &mut Vec<T>) {
        // Where nobody looked, nothing was found.
        let mut last = self.last.iter();
        items.retain(|_| !last.next().copied().unwrap_or(false));
    }

    /// Takes the files that were found last out of four lists.
    pub(super) fn take_out<A, B, C, D>(
        &self,
        a: &mut Vec<A>,
        b: &mut Vec<B>,
        c: &mut Vec<C>,
        d: &mut Vec<D>,
    ) {
        self.take_out_one(a);
        self.take_out_one(b);
        self.take_out_one(c);
        self.take_out_one(d);
    }

    /// Names and reasons, by name.
    pub(super) fn into_listed(mut self) -> Vec<(String, String)> {
        self.listed.sort();
        self.listed
    }

    /// Finds the files whose schema cannot stand beside the schema that most files have (of
    /// several, the first).
    pub(super) fn find_odd(
        &mut self,
        names: &[String],
        schemas: &[&Schema],
        format: &Format,
        declared: bool,
    ) {
        let Some(usual) = most_common(schemas) else { return };
        let mut merged = schemas[usual].clone();
        let by_position = matches!(format, Format::Csv(_));
        let found: Vec<_> = names
            .iter()
            .zip(schemas)
            .map(|(name, schema)| {
                let pair = [(names[usual].as_str(), schemas[usual]), (name.as_str(), *schema)];
                let mut fits = Ok(());
                if by_position {
                    fits = same_positions(pair);
                }
                if fits.is_ok() && !declared {
                    let both = merge_schemas([(names[usual].as_str(), &merged), pair[1]]);
                    fits = both.map(|both| merged = both);
                }
                fits.err().map(|error| (name.clone(), error.to_string()))
            })
            .collect();
        self.look_at(found);
    }
}

impl Infer<'_> {
    /// The schemas of the files that can be read; the others are noted.
    ///
    /// # Errors
    /// Errors that are not about a file's content; the first error if no file can be read.
    pub(super) async fn those_that_can(
        &self,
        files: &[ObjectMeta],
        names: &[String],
        bad: &mut BadFiles,
    ) -> Result<Vec<FileSchema>> {
        let found: Vec<Result<FileSchema>> =
            futures::stream::iter(files.iter().zip(names).map(|(meta, name)| async move {
                self.one_tolerantly(meta).await.map_err(|error| error.with_context("file", name))
            }))
            .buffered(concurrent_files(self.format))
            .collect()
            .await;
        let (mut read, mut reasons, mut first) = (Vec::new(), Vec::new(), None);
        for ((meta, name), found) in files.iter().zip(names).zip(found) {
            match found {
                Ok(schema) => {
                    read.push(schema);
                    reasons.push(None);
                }
                Err(error) => {
                    let error = blame_content(self.store, &meta.location, error).await?;
                    reasons.push(Some((name.clone(), error.to_string())));
                    first.get_or_insert(error);
                }
            }
        }
        bad.look_at(reasons);
        match first {
            Some(error) if read.is_empty() => Err(error),
            _ => Ok(read),
        }
    }

    /// The schema of a file. Of a text file with a record that cannot be read, by the records
    /// before it: that record may spoil one split of many.
    async fn one_tolerantly(&self, meta: &ObjectMeta) -> Result<FileSchema> {
        let error = match self.one(meta).await {
            Err(error) if error.may_be_of_content() => error,
            found => return found,
        };
        if !matches!(self.format, Format::Csv(_) | Format::Json(_)) {
            return Err(error);
        }
        let (mut read, mut spoilt) = (None, self.rows);
        let mut good = 0;
        while spoilt - good > 1 {
            let rows = good + (spoilt - good) / 2;
            match (Infer { rows, ..*self }).one(meta).await {
                Ok(schema) => (read, good) = (Some(schema), rows),
                Err(error) if error.may_be_of_content() => spoilt = rows,
                Err(error) => return Err(error),
            }
        }
        read.ok_or(error)
    }
}

/// The place of the schema that most files have, of several the first; files without columns have
/// no say.
fn most_common(schemas: &[&Schema]) -> Option<usize> {
    let mut kinds: Vec<(usize, usize)> = Vec::new();
    for (place, schema) in schemas.iter().enumerate() {
        if schema.fields().is_empty() {
            continue;
        }
        match kinds.iter_mut().find(|(first, _)| schemas[*first].fields() == schema.fields()) {
            Some((_, files)) => *files += 1,
            None => kinds.push((place, 1)),
        }
    }
    let most = kinds.iter().map(|(_, files)| *files).max()?;
    kinds.into_iter().find(|(_, files)| *files == most).map(|(first, _)| first)
}
