//! A table by its metadata file or by its directory.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use iceberg::io::InputFile;
use tensorquery::ErrorKind;
use tensorquery::iceberg::catalog::{IcebergCatalog, StorageAccess, load_metadata};

use super::{metadata, names, properties, write_metadata};
use crate::support::block_on;

fn location_of(location: &str) -> String {
    let table = block_on(load_metadata(location, &StorageAccess::default())).unwrap();
    assert_eq!(table.metadata.current_schema().as_struct().fields().len(), 1);
    table.metadata_location.unwrap()
}

fn refused(location: &str) -> (ErrorKind, String) {
    let error = block_on(load_metadata(location, &StorageAccess::default())).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn a_metadata_file_is_read_compressed_or_not() {
    let directory = tempfile::tempdir().unwrap();
    let plain = write_metadata(directory.path(), "metadata/v1.metadata.json");
    assert_eq!(location_of(&plain), plain);
    assert_eq!(location_of(&format!("file:{plain}")), format!("file:{plain}"));
    for name in ["v2.gz.metadata.json", "v2.metadata.json.gz"] {
        let path = directory.path().join(name);
        let mut file = GzEncoder::new(std::fs::File::create(&path).unwrap(), Compression::fast());
        file.write_all(metadata("/t").as_bytes()).unwrap();
        file.finish().unwrap();
        location_of(&path.display().to_string());
    }
}

#[test]
fn a_directory_means_its_newest_metadata() {
    let directory = tempfile::tempdir().unwrap();
    let table = directory.path().display().to_string();
    let (kind, text) = refused(&table);
    assert_eq!(kind, ErrorKind::TableNotFound);
    assert!(text.contains("no Iceberg table"), "{text}");
    write_metadata(directory.path(), "metadata/00002-aaaa.metadata.json");
    let newest = write_metadata(directory.path(), "metadata/00010-bbbb.metadata.json");
    assert_eq!(location_of(&table), newest);
    let third = write_metadata(directory.path(), "metadata/v3.metadata.json");
    std::fs::write(directory.path().join("metadata/version-hint.text"), "3\n").unwrap();
    assert_eq!(location_of(&format!("{table}/")), third);
    std::fs::write(directory.path().join("metadata/version-hint.text"), "4").unwrap();
    let (kind, text) = refused(&table);
    assert_eq!(kind, ErrorKind::Data);
    assert!(text.contains("version \"4\""), "{text}");
}

#[test]
fn what_is_no_metadata_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.metadata.json");
    std::fs::write(&path, "{\"format-version\": 9}").unwrap();
    let (kind, text) = refused(&path.display().to_string());
    assert_eq!(kind, ErrorKind::Data);
    assert!(text.contains("format version 9") && text.contains("a.metadata.json"), "{text}");
    let (kind, text) = refused("/no/such.metadata.json");
    assert_eq!(kind, ErrorKind::TableNotFound);
    assert!(text.contains("/no/such.metadata.json"), "{text}");
}

#[test]
fn a_catalog_in_memory_is_its_properties() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_metadata(directory.path(), "metadata/v1.metadata.json");
    let pairs = [("type", "in-memory"), ("table.a.b.orders", &file), ("table.a.users", &file)];
    let catalog = IcebergCatalog::try_new("lake", properties(&pairs)).unwrap();
    block_on(async {
        assert_eq!(catalog.list_namespaces(&[]).await.unwrap(), [names("a")]);
        assert_eq!(catalog.list_namespaces(&names("a")).await.unwrap(), [names("a.b")]);
        assert_eq!(catalog.list_tables(&names("a.b")).await.unwrap(), ["orders"]);
        let table = catalog.load_table(&names("a.b"), "orders").await.unwrap();
        assert_eq!(table.metadata_location.as_deref(), Some(file.as_str()));
        let error = catalog.load_table(&names("a.b"), "order").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TableNotFound);
        let text = error.to_string();
        assert!(text.contains("unknown table a.b.order; did you mean \"orders\"?"), "{text}");
        assert!(text.contains("catalog: lake"), "{text}");
        let error = catalog.load_table(&names("c"), "x").await.unwrap_err();
        assert!(error.to_string().contains("unknown namespace c"), "{error}");
    });
}

#[test]
fn the_iceberg_crate_reads_through_the_same_store() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_metadata(directory.path(), "metadata/v1.metadata.json");
    let io = StorageAccess::default().file_io();
    block_on(async {
        let input: InputFile = io.new_input(format!("file:{file}")).unwrap();
        assert!(input.exists().await.unwrap());
        let size = input.metadata().await.unwrap().size;
        assert_eq!(input.read().await.unwrap().len() as u64, size);
        let reader = input.reader().await.unwrap();
        assert_eq!(&reader.read(0..1).await.unwrap()[..], b"{");
        assert!(!io.exists("/no/such/file").await.unwrap());
        let error = io.new_output("/tmp/x").unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");
    });
}
