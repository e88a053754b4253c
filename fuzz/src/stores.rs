//! URLs and the options of their stores.

use std::collections::BTreeMap;

use tensorquery::Result;
use tensorquery::iceberg::TravelTo;
use tensorquery::session::{Session, SessionOptions};
use tensorquery::storage::{StorageOptions, StoreAccess};

use crate::panics::answer;

/// Opens the store of the URL in the first line, with the options in JSON that follow. No request is made: files are not
/// listed. The same options may stand for the properties of a catalog.
pub fn open_store(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (url, options) = text.split_once('\n').unwrap_or((text, "{}"));
    answer(async {
        check_catalog(options);
        let options = match serde_json::from_str::<StorageOptions>(options) {
            Ok(options) => options,
            Err(_) => return Ok(()),
        };
        let access = StoreAccess { options, ..StoreAccess::default() };
        let opened = access.open_paths(&[url.to_owned()]).await?;
        // What is serialised reads back as the same store.
        let sent = serde_json::to_string(&opened.access).expect("options are plain data");
        let access: StoreAccess = serde_json::from_str(&sent).expect("and come back");
        let again = access.open_paths(&[url.to_owned()]).await?;
        assert_eq!(opened.root(), again.root());
        Ok(())
    });
}

fn check_catalog(properties: &str) {
    if let Ok(properties) = serde_json::from_str::<BTreeMap<String, String>>(properties) {
        let registered = Session::try_new(SessionOptions::default()).and_then(|session| {
            session.register_catalog("c", properties, StorageOptions::default())
        });
        let _: Result<()> = registered;
    }
    let _: Result<TravelTo, _> = serde_json::from_str(properties);
}
