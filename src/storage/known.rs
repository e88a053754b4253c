//! The storage properties that Iceberg's clients know, for telling a slip of the pen from a name of
//! somebody's own.

/// Properties of Java, Python and Rust together: a property that another client understands is no
/// slip.
const ICEBERG: &[&str] = &[
    "adls.account-host",
    "adls.account-key",
    "adls.account-name",
    "adls.anon",
    "adls.authority-host",
    "adls.blob-storage-authority",
    "adls.blob-storage-scheme",
    "adls.client-id",
    "adls.client-secret",
    "adls.connection-string",
    "adls.credential",
    "adls.dfs-storage-authority",
    "adls.dfs-storage-scheme",
    "adls.refresh-credentials-enabled",
    "adls.refresh-credentials-endpoint",
    "adls.sas-token",
    "adls.sas-token-expires-at-ms",
    "adls.tenant-id",
    "adls.token",
    "client.access-key-id",
    "client.assume-role.arn",
    "client.assume-role.external-id",
    "client.assume-role.region",
    "client.assume-role.session-name",
    "client.assume-role.timeout-sec",
    "client.factory",
    "client.profile-name",
    "client.refresh-credentials-enabled",
    "client.refresh-credentials-endpoint",
    "client.region",
    "client.role-arn",
    "client.role-session-name",
    "client.secret-access-key",
    "client.session-token",
    "gcs.access",
    "gcs.allow-anonymous",
    "gcs.cache-timeout",
    "gcs.consistency",
    "gcs.credentials-json",
    "gcs.default-bucket-location",
    "gcs.disable-config-load",
    "gcs.disable-vm-metadata",
    "gcs.endpoint",
    "gcs.no-auth",
    "gcs.oauth2.refresh-credentials-enabled",
    "gcs.oauth2.refresh-credentials-endpoint",
    "gcs.oauth2.token",
    "gcs.oauth2.token-expires-at",
    "gcs.project-id",
    "gcs.requester-pays",
    "gcs.service.host",
    "gcs.service.path",
    "gcs.session-kwargs",
    "gcs.user-project",
    "gcs.version-aware",
    "s3.access-key-id",
    "s3.acl",
    "s3.allow-anonymous",
    "s3.anonymous",
    "s3.connect-timeout",
    "s3.cross-region-access-enabled",
    "s3.disable-config-load",
    "s3.disable-ec2-metadata",
    "s3.endpoint",
    "s3.force-virtual-addressing",
    "s3.path-style-access",
    "s3.profile-name",
    "s3.proxy-uri",
    "s3.region",
    "s3.remote-signing-enabled",
    "s3.request-timeout",
    "s3.resolve-region",
    "s3.retry-strategy-impl",
    "s3.role-arn",
    "s3.role-session-name",
    "s3.secret-access-key",
    "s3.server-side-encryption",
    "s3.session-token",
    "s3.session-token-expires-at-ms",
    "s3.signer",
    "s3.signer.endpoint",
    "s3.signer.uri",
    "s3.sse-kms-key-id",
    "s3.sse.key",
    "s3.sse.md5",
    "s3.sse.type",
    "s3.use-arn-region-enabled",
];

/// How many letters a slip of the pen changes at most; in a short name, one.
const SLIP: usize = 2;

/// The known property that an unknown one differs from by one or two letters.
pub(crate) fn slip_of(name: &str) -> Option<&'static str> {
    slip_among(name, ICEBERG)
}

/// The name in `known` that `name`, which is not in it, differs from by one or two letters.
pub(crate) fn slip_among<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if known.contains(&name) {
        return None;
    }
    let limit = |known: &str| SLIP.min(known.len() / 3);
    let near = |known: &&&str| strsim::damerau_levenshtein(name, known) <= limit(known);
    known.iter().find(near).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_known_from_names_of_somebodys_own() {
        assert_eq!(slip_of("s3.acess-key-id"), Some("s3.access-key-id"));
        assert_eq!(slip_of("s3.regoin"), Some("s3.region"));
        for name in ICEBERG {
            assert_eq!(slip_of(name), None, "{name}");
        }
        for name in ["s3.preload-client-enabled", "adls.sas-token.account", "client.custom"] {
            assert_eq!(slip_of(name), None, "{name}");
        }
    }
}
