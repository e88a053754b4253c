//! Pages of Parquet files as they come from a store, looked at before they are decompressed.
//!
//! The reader of the `parquet` crate allocates the declared size of a page before it looks at the
//! stored bytes. A file of four kilobytes may ask for gigabytes, and the process ends if they are
//! not there. The reader also ignores checksums of pages.

use parquet::errors::ParquetError;
use parquet::schema::types::ColumnPath;

use super::thrift::{PageHeader, page_header};
use crate::bounds::PARQUET_PAGE;

/// The first byte of every page header: its first field, a number.
const FIRST: u8 = 0x15;

/// Refuses pages that declare implausible sizes, or do not match their checksums. `bytes` are pages
/// one after another, from the header of the first one on, and perhaps something behind the last.
///
/// # Errors
/// For the first of them, and for headers that are none.
pub(in crate::formats) fn check_pages(bytes: &[u8]) -> Result<(), String> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some(page) = page_header(rest) else {
            if rest.len() == bytes.len() || rest[0] == FIRST {
                return Err("the header of a page is damaged".to_owned());
            }
            break;
        };
        check_page(&page)?;
        let end =
            usize::try_from(page.stored).ok().and_then(|stored| page.length.checked_add(stored));
        if let Some(stored) = end.and_then(|end| rest.get(page.length..end)) {
            check_sum(stored, page.checksum)?;
        }
        rest = end.and_then(|end| rest.get(end..)).unwrap_or_default();
    }
    Ok(())
}

/// Returns true if a page declares plausible sizes.
///
/// # Errors
/// Where it declares too much.
pub(super) fn check_page(page: &PageHeader) -> Result<(), String> {
    let most = PARQUET_PAGE.unpacked(page.stored);
    if page.declared > most {
        let (stored, declared) = (page.stored, page.declared);
        let what =
            format!("a page of {stored} stored bytes says that it becomes {declared} bytes,");
        return Err(PARQUET_PAGE.message(&what, most));
    }
    Ok(())
}

/// Whether a page is as it was `stored`, as far as its header tells.
///
/// # Errors
/// Where it is not.
pub(super) fn check_sum(stored: &[u8], checksum: Option<u32>) -> Result<(), String> {
    match checksum {
        Some(checksum) if crc32fast::hash(stored) != checksum => {
            Err("a page is damaged: its bytes are others than its checksum says".to_owned())
        }
        _ => Ok(()),
    }
}

/// The error where that is found of a column.
pub(in crate::formats) fn wrong(column: &ColumnPath, what: &str) -> ParquetError {
    ParquetError::General(format!("column {:?}: {what}", column.string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header as the format writes it (type, declared and stored bytes, the head of a data page),
    /// and as many bytes.
    fn page(declared: u32, stored: u32) -> Vec<u8> {
        let number = |number: u32| {
            let mut rest = u64::from(number) << 1;
            let mut bytes = Vec::new();
            while rest > 0x7f {
                bytes.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push(rest as u8);
            bytes
        };
        let mut bytes = vec![0x15, 0, 0x15];
        bytes.extend(number(declared));
        bytes.push(0x15);
        bytes.extend(number(stored));
        bytes.extend([0x2c, 0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0]);
        bytes.resize(bytes.len() + stored as usize, 0xA5);
        bytes
    }

    #[test]
    fn a_page_that_becomes_too_much_is_refused_wherever_it_is() {
        let plausible = [page(0, 0), page(1 << 20, 1 << 10), page(100 << 20, 7)].concat();
        assert!(check_pages(&plausible).is_ok());
        for (declared, stored) in [(1 << 30, 3346), (i32::MAX as u32, 0), ((256 << 20) + 1024, 1)] {
            let one = page(declared, stored);
            let error = check_pages(&[plausible.clone(), one].concat()).unwrap_err();
            assert!(error.to_string().contains(&declared.to_string()), "{error}");
        }
        // Large pages of which enough is stored.
        assert!(check_pages(&page(300 << 20, 300 << 10)).is_ok());
    }

    #[test]
    fn a_header_that_is_cut_or_none_is_refused_and_what_lies_behind_pages_is_not_looked_at() {
        let one = page(1 << 20, 1 << 10);
        let header = one.len() - (1 << 10);
        for end in 1..header {
            assert!(check_pages(&one[..end]).is_err(), "{end} bytes");
        }
        for end in header..one.len() {
            assert!(check_pages(&one[..end]).is_ok(), "{end} bytes");
        }
        assert!(check_pages(&[]).is_ok());
        assert!(check_pages(&[one, vec![0; 100]].concat()).is_ok());
    }

    /// The reader takes it for a number all the same.
    #[test]
    fn sizes_of_another_type_are_refused() {
        let mut confused = page(1 << 30, 10);
        assert_eq!(confused[2], 0x15);
        confused[2] = 0x18;
        assert!(check_pages(&confused).is_err());
    }

    #[test]
    fn a_page_that_is_another_than_its_checksum_says_is_damaged() {
        let plain = page(100, 100);
        let at = plain.len() - 100;
        // Behind the sizes, the field after them: a number.
        let with = |checksum: u32| {
            let number = checksum.cast_signed();
            let mut rest = ((number << 1) ^ (number >> 31)).cast_unsigned();
            let mut field = vec![0x15];
            while rest > 0x7f {
                field.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            field.push(rest as u8);
            // What comes then is counted from the field before it.
            let header = &plain[..at];
            let behind = header.iter().position(|byte| *byte == 0x2c).unwrap();
            [&header[..behind], &field, &[0x1c], &header[behind + 1..], &plain[at..]].concat()
        };
        let right = crc32fast::hash(&plain[at..]);
        assert!(check_pages(&with(right)).is_ok());
        let other = check_pages(&[page(7, 7), with(right ^ 1)].concat()).unwrap_err();
        assert!(other.contains("its checksum"), "{other}");
        // Not all of it is here.
        let cut = with(right ^ 1);
        assert!(check_pages(&cut[..cut.len() - 1]).is_ok());
    }
}
