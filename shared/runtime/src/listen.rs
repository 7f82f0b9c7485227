//! Listens at an address, or at all addresses of a machine, with IPv4 and IPv6.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

/// Listens at `address`. `[::]` means every address, also of IPv4, unless the system's settings
/// keep the two apart. On a system without IPv6 it means every IPv4 address.
///
/// Needs a Tokio runtime.
///
/// # Errors
/// The system's error, together with the address. The address may be in use, or this process may
/// lack the permission to listen there.
pub fn listen(address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
    let listener = bind(address, TcpListener::bind).and_then(|listener| {
        listener.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(listener)
    });
    listener.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("failed to listen at {address}: {error}"),
        )
    })
}

/// A listener at the address, or at the IPv4 address that replaces it.
fn bind<L>(address: SocketAddr, new: impl Fn(SocketAddr) -> io::Result<L>) -> io::Result<L> {
    match new(address) {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && error.kind() != io::ErrorKind::AddrInUse =>
        {
            new((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn every_address_is_one_of_ipv4_too() {
        let listener = listen((Ipv6Addr::UNSPECIFIED, 0).into()).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        TcpStream::connect((Ipv4Addr::LOCALHOST, address.port()))
            .await
            .expect("by IPv4");
        if address.is_ipv6() && std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, address.port()))
                .await
                .expect("by IPv6");
        }
        let taken = listen(address).expect_err("it is taken");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert!(
            taken
                .to_string()
                .starts_with(&format!("failed to listen at {address}: ")),
            "{taken}"
        );
    }

    #[test]
    fn where_there_is_no_ipv6_every_address_is_one_of_ipv4() {
        use std::io::ErrorKind::{AddrInUse, Unsupported};
        for (asked, error, given) in [
            ("[::]:80", Unsupported, Some("0.0.0.0:80")),
            ("[::]:80", AddrInUse, None),
            ("127.0.0.1:80", Unsupported, Some("127.0.0.1:80")),
            ("[::1]:80", Unsupported, None),
        ] {
            let old = |address: SocketAddr| {
                if address.is_ipv4() {
                    Ok(address)
                } else {
                    Err(error.into())
                }
            };
            let bound = bind(asked.parse().expect("an address"), old).ok();
            assert_eq!(
                bound,
                given.map(|given| given.parse().expect("an address")),
                "{asked}"
            );
        }
    }
}
