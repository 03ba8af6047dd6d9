//! What stores answer, as one sentence for people.

use std::error::Error as _;

use object_store::Error as StoreError;

use crate::error::{Error, ErrorKind};

/// Returns whether the object, and not its bucket, is missing.
pub fn is_missing(error: &StoreError) -> bool {
    matches!(error, StoreError::NotFound { .. }) && !told(error).contains("NoSuchBucket")
}

/// All that an error and its causes say.
fn told(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Variables that hold credentials, by the scheme of the URL.
fn credentials(url: &str) -> &'static str {
    match url.split("://").next() {
        Some("gs") => "GOOGLE_APPLICATION_CREDENTIALS",
        Some("az") => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        _ => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    }
}

/// Makes the failure of a request.
pub fn failure(url: &str, doing: &str, key: &str, error: &StoreError) -> Error {
    let place = format!("{url}/{key}");
    let (kind, why) = explain(url, &told(error), error);
    Error::new(kind, format!("cannot {doing} {}: {why}", place.trim_end_matches('/')))
}

/// What the libraries say of a store that does not answer.
const UNREACHABLE: [&str; 5] = [
    "error trying to connect",
    "tcp connect error",
    "dns error",
    "connection refused",
    "Connection refused",
];

fn explain(url: &str, told: &str, error: &StoreError) -> (ErrorKind, String) {
    let says = |words: &[&str]| words.iter().any(|word| told.contains(word));
    let variables = credentials(url);
    if says(&["NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"]) {
        return (
            ErrorKind::NotFound,
            "there is no such bucket: make it first, or name another".to_owned(),
        );
    }
    // The services that hand out credentials inside a cloud are asked where nothing else names any.
    if says(&[
        "169.254.",
        "metadata.google.internal",
        "Error getting credentials",
        "InstanceProfile",
    ]) {
        return (ErrorKind::NotPermitted, format!("there are no credentials: set {variables}"));
    }
    if says(&[
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "ExpiredToken",
        "AuthenticationFailed",
    ]) || matches!(error, StoreError::Unauthenticated { .. })
    {
        return (
            ErrorKind::NotPermitted,
            format!("the store does not take the credentials: check {variables}"),
        );
    }
    if says(&["AccessDenied", "403 Forbidden"])
        || matches!(error, StoreError::PermissionDenied { .. })
    {
        return (
            ErrorKind::NotPermitted,
            "the store denies access: give these credentials the right to it, or use others"
                .to_owned(),
        );
    }
    if says(&["redirect without LOCATION", "PermanentRedirect", "AuthorizationHeaderMalformed"]) {
        return (
            ErrorKind::Invalid,
            "the bucket lies in another region: set AWS_REGION".to_owned(),
        );
    }
    if says(&UNREACHABLE) {
        return (
            ErrorKind::Io,
            "the store cannot be reached: check the endpoint and the network, and repeat the \
             command"
                .to_owned(),
        );
    }
    (ErrorKind::Io, format!("{}: repeat the command", last_words(told)))
}

/// Returns the end of a chain of causes, in one line and without markup.
fn last_words(told: &str) -> String {
    let mut plain = String::with_capacity(told.len());
    let mut inside = false;
    for c in told.chars() {
        match c {
            '<' => inside = true,
            '>' => (inside, plain) = (false, plain + " "),
            c if !inside => plain.push(if c.is_control() { ' ' } else { c }),
            _ => {}
        }
    }
    let words: Vec<&str> = plain.split_whitespace().collect();
    let line = words.join(" ");
    let skip = line.char_indices().rev().nth(239).map_or(0, |(at, _)| at);
    line[skip..].trim_end_matches([':', '.', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(message: &str) -> Error {
        let error = StoreError::Generic { store: "S3", source: message.to_owned().into() };
        failure("s3://b/p", "read", "manifests/m", &error)
    }

    #[test]
    fn answers_of_stores_become_sentences() {
        for (answer, kind, part) in [
            ("404: <Code>NoSuchBucket</Code>", ErrorKind::NotFound, "no such bucket"),
            (
                "error sending request for url (http://169.254.169.254/latest/api/token)",
                ErrorKind::NotPermitted,
                "AWS_ACCESS_KEY_ID",
            ),
            (
                "403 Forbidden: <Code>InvalidAccessKeyId</Code>",
                ErrorKind::NotPermitted,
                "does not take the credentials",
            ),
            ("403 Forbidden: <Code>AccessDenied</Code>", ErrorKind::NotPermitted, "denies access"),
            ("tcp connect error", ErrorKind::Io, "cannot be reached"),
        ] {
            let failure = failed(answer);
            assert!(
                failure.kind == kind && failure.message.contains(part),
                "{answer}: {:?}: {failure}",
                failure.kind
            );
            assert!(failure.message.starts_with("cannot read s3://b/p/manifests/m: "), "{failure}");
        }
        let strange =
            failed("500: <?xml version=\"1.0\"?>\n<Error>\n<Message>out of luck</Message></Error>");
        assert_eq!(strange.message.matches('\n').count(), 0);
        assert!(strange.message.contains("out of luck"), "{strange}");
        assert!(
            failure(
                "gs://b",
                "list",
                "",
                &StoreError::Unauthenticated { path: "p".into(), source: "no".into() }
            )
            .message
            .contains("GOOGLE_")
        );
    }
}
