//! Interprets a catalog's properties, and checks them without any I/O.

use std::collections::BTreeMap;

use super::rest::TRUSTED_ORIGINS;
use crate::storage::{is_storage_property, slip_among, slip_of, without_password};
use crate::{Error, Result, list_names, suggestion};

/// The kinds of catalogs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatalogType {
    Rest,
    Sql,
    Glue,
    Hive,
    S3Tables,
    Memory,
    /// Unity Catalog, whose tables are Delta's.
    Unity,
}

/// Values that a user may write as `type`.
const TYPES: &[(&str, CatalogType)] = &[
    ("rest", CatalogType::Rest),
    ("sql", CatalogType::Sql),
    ("jdbc", CatalogType::Sql),
    ("glue", CatalogType::Glue),
    ("hive", CatalogType::Hive),
    ("s3tables", CatalogType::S3Tables),
    ("in-memory", CatalogType::Memory),
    ("memory", CatalogType::Memory),
    ("unity", CatalogType::Unity),
];

/// Names that every catalog of pyiceberg takes and that change nothing for a reader.
const COMMON: &[&str] = &["type", "uri", "warehouse", "py-io-impl"];

/// Properties for writers, and for files.
const SPACES: &[&str] = &["table-default.", "table-override.", "write.", "hf.", "downcast-"];

/// Properties that are known and not supported, each with an alternative.
const REFUSED: &[(&str, &str)] = &[
    ("py-catalog-impl", "name one of the catalog types as \"type\""),
    ("auth", "pass \"credential\" or \"token\", or \"header.Authorization\""),
    ("auth.type", "pass \"credential\" or \"token\", or \"header.Authorization\""),
    ("ssl", "add the certificate to the operating system's (SSL_CERT_FILE)"),
    ("ssl.cabundle", "add the certificate to the operating system's (SSL_CERT_FILE)"),
    ("hive.kerberos-authentication", "use a metastore without Kerberos, or a REST catalog"),
    ("glue.role-arn", "assume the role and pass its glue.access-key-id and others"),
];

/// The type of a catalog, from `type` or from the scheme of its `uri`, and its properties checked.
///
/// # Errors
///
/// `Config`, for an unknown type (with the nearest name), a missing property, one that is not
/// supported, and an unknown one where the catalog is no server that may know it.
pub(super) fn catalog_type(properties: &BTreeMap<String, String>) -> Result<CatalogType> {
    for (name, instead) in REFUSED {
        if properties.get(*name).is_some_and(|value| !is_off(value)) {
            return Err(Error::config(format!(
                "the catalog property {name} is not supported; {instead}"
            )));
        }
    }
    let uri = properties.get("uri").map(String::as_str).filter(|uri| !uri.is_empty());
    let kind = match properties.get("type") {
        Some(name) => named(name)?,
        None => inferred(uri)?,
    };
    let kind = match (kind, uri) {
        // pyiceberg's in-memory catalog is a database, which may be a file.
        (CatalogType::Memory, Some(uri)) if !uri.ends_with(":memory:") => CatalogType::Sql,
        _ => kind,
    };
    let needs_uri = matches!(
        kind,
        CatalogType::Rest | CatalogType::Sql | CatalogType::Hive | CatalogType::Unity
    );
    if needs_uri && uri.is_none() {
        return Err(Error::config(format!(
            "a catalog of type {:?} needs the property \"uri\"",
            name_of(kind)
        )));
    }
    if kind == CatalogType::S3Tables {
        super::aws::table_bucket(properties)?;
    }
    check_names(kind, properties)?;
    check_choice(properties, "snapshot-loading-mode", &["all", "refs"])?;
    check_choice(properties, "scan-planning-mode", &["client"])?;
    Ok(kind)
}

fn check_choice(properties: &BTreeMap<String, String>, name: &str, allowed: &[&str]) -> Result<()> {
    match properties.get(name) {
        Some(value) if !allowed.contains(&value.to_ascii_lowercase().as_str()) => {
            Err(Error::config(format!("{name} must be {}, not {value:?}", allowed.join(" or "))))
        }
        _ => Ok(()),
    }
}

/// The name of a type as a user writes it.
pub(super) fn name_of(kind: CatalogType) -> &'static str {
    TYPES.iter().find(|(_, known)| *known == kind).map_or("", |(name, _)| name)
}

fn is_off(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "" | "false" | "0")
}

fn named(name: &str) -> Result<CatalogType> {
    let lower = name.to_ascii_lowercase();
    let found = TYPES.iter().find(|(known, _)| *known == lower);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
        Error::config(format!(
            "unknown catalog type {name:?}{}; the types are {}",
            suggestion(name, names.iter().copied()),
            list_names(&names),
        ))
    })
}

/// pyiceberg's rule: `http(s)` is REST, `thrift` is Hive, `sqlite` and `postgresql` are SQL.
fn inferred(uri: Option<&str>) -> Result<CatalogType> {
    let Some(uri) = uri else {
        let names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
        return Err(Error::config(format!(
            "a catalog needs the property \"type\" or \"uri\"; the types are {}",
            list_names(&names)
        )));
    };
    const SCHEMES: &[(&str, CatalogType)] = &[
        ("http", CatalogType::Rest),
        ("thrift", CatalogType::Hive),
        ("sqlite", CatalogType::Sql),
        ("postgres", CatalogType::Sql),
    ];
    let found = SCHEMES.iter().find(|(start, _)| uri.starts_with(start));
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        Error::config(format!(
            "the uri {:?} does not tell the type of the catalog (http, https, thrift, sqlite and \
             postgresql do); pass \"type\"",
            without_password(uri)
        ))
    })
}

/// The names that belong to one type.
fn own_names(kind: CatalogType) -> &'static [&'static str] {
    match kind {
        CatalogType::Rest => &[
            "audience",
            "credential",
            "namespace-separator",
            "oauth2-server-uri",
            "prefix",
            "resource",
            "rest-page-size",
            "rest.sigv4-enabled",
            "rest.signing-name",
            "rest.signing-region",
            "scan-planning-mode",
            "scope",
            "snapshot-loading-mode",
            "token",
            TRUSTED_ORIGINS,
            "view-endpoints-supported",
        ],
        CatalogType::Sql => &["catalog_name", "echo", "init_catalog_tables", "pool_pre_ping"],
        CatalogType::Glue => &[
            "glue.access-key-id",
            "glue.connect-timeout",
            "glue.endpoint",
            "glue.id",
            "glue.max-retries",
            "glue.profile-name",
            "glue.read-timeout",
            "glue.region",
            "glue.retry-mode",
            "glue.secret-access-key",
            "glue.session-token",
            "glue.skip-archive",
        ],
        CatalogType::Hive => &["hive.hive2-compatible", "thrift_transport", "ugi"],
        CatalogType::S3Tables => &[
            "s3tables.access-key-id",
            "s3tables.endpoint",
            "s3tables.profile-name",
            "s3tables.region",
            "s3tables.secret-access-key",
            "s3tables.session-token",
            "s3tables.warehouse",
            "table_bucket_arn",
        ],
        CatalogType::Memory => &[],
        CatalogType::Unity => &[
            "audience",
            "catalog",
            "credential",
            "oauth2-server-uri",
            "resource",
            "scope",
            "token",
        ],
    }
}

fn check_names(kind: CatalogType, properties: &BTreeMap<String, String>) -> Result<()> {
    let own = own_names(kind);
    if kind == CatalogType::Unity {
        return check_unity(properties, own);
    }
    for name in properties.keys().map(String::as_str) {
        let unknown = |near: String| {
            let all: Vec<&str> = COMMON.iter().chain(own).copied().collect();
            Error::config(format!(
                "unknown property {name:?} of a catalog of type {:?}{near}; known are {}, and s3.*, \
                 gcs.*, adls.* and client.* for its files",
                name_of(kind),
                list_names(&all),
            ))
        };
        if COMMON.contains(&name) || own.contains(&name) {
            continue;
        }
        // These spaces are free, but a name that differs by a letter from a known one is a slip.
        let slip = match is_storage_property(name) {
            true => slip_of(name),
            false => slip_among(name, own).or(slip_among(name, COMMON)),
        };
        if let Some(near) = slip {
            return Err(unknown(format!("; did you mean {near:?}?")));
        }
        let is_free = is_storage_property(name)
            || SPACES.iter().any(|space| name.starts_with(space))
            // A server may know names that nobody here does.
            || kind == CatalogType::Rest
            || (kind == CatalogType::Memory && name.starts_with("table."));
        if !is_free {
            let all = COMMON.iter().chain(own).copied();
            return Err(unknown(suggestion(name, all)));
        }
    }
    Ok(())
}

/// Options of stores do not stand among the properties of a Unity Catalog, and pyiceberg knows none.
fn check_unity(properties: &BTreeMap<String, String>, own: &[&str]) -> Result<()> {
    let is_known = |name: &str| {
        own.contains(&name) || ["type", "uri"].contains(&name) || name.starts_with("header.")
    };
    let Some(name) = properties.keys().find(|name| !is_known(name)) else { return Ok(()) };
    let all: Vec<&str> = ["uri"].iter().chain(own).copied().collect();
    Err(Error::config(format!(
        "unknown property {name:?} of a Unity Catalog{}; known are {}, and header.*; options of the stores of its \
         files go with storage_options=",
        suggestion(name, all.iter().copied()),
        list_names(&all),
    )))
}
