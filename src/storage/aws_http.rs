//! Requests of AWS's library, sent by our HTTP client.

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;

use super::network::client_builder;
use crate::{Error, Result};

/// The HTTP client for log-ins and roles. The library's own would bring a second TLS stack.
#[derive(Clone, Debug)]
pub(super) struct AwsHttp(reqwest::Client);

impl AwsHttp {
    /// # Errors
    ///
    /// `Config` where the machine has no usable TLS certificates.
    pub(super) fn try_new() -> Result<Self> {
        client_builder()
            .build()
            .map(Self)
            .map_err(|error| Error::config("cannot make an HTTP client").with_source(error))
    }

    async fn send(self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let user = |error: Box<dyn std::error::Error + Send + Sync>| ConnectorError::user(error);
        let request = request.try_into_http1x().map_err(|error| user(error.into()))?;
        let (parts, body) = request.into_parts();
        // Log-ins send short texts, which are held whole.
        let body = body.bytes().map(<[u8]>::to_vec).unwrap_or_default();
        let request = http::Request::from_parts(parts, body);
        let request = reqwest::Request::try_from(request).map_err(|error| user(error.into()))?;
        let failed = |error: reqwest::Error| match error.is_timeout() {
            true => ConnectorError::timeout(error.into()),
            false => ConnectorError::io(error.into()),
        };
        let answer = self.0.execute(request).await.map_err(failed)?;
        let mut response = http::Response::new(());
        *response.status_mut() = answer.status();
        *response.headers_mut() = answer.headers().clone();
        let body = answer.bytes().await.map_err(failed)?;
        let response = response.map(|()| SdkBody::from(body.to_vec()));
        HttpResponse::try_from(response).map_err(|error| user(error.into()))
    }
}

impl HttpConnector for AwsHttp {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new(self.clone().send(request))
    }
}

impl HttpClient for AwsHttp {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}
