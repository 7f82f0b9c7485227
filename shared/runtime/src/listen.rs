//! Listens at an address, or at all addresses of a machine, with IPv4 and IPv6. Tokio's own sockets
//! leave it to the system's settings whether `[::]` includes IPv4.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// How many connections may wait to be accepted, if the system allows that many.
const BACKLOG: i32 = 1024;

/// Listens at `address`. `[::]` means every address, also of IPv4. On a system without IPv6 it
/// means every IPv4 address.
///
/// Needs a Tokio runtime.
///
/// # Errors
/// The system's error, together with the address. The address may be in use, or this process may
/// lack the permission to listen there.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    open_and_listen(address).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("failed to listen at {address}: {error}"),
        )
    })
}

fn open_and_listen(address: SocketAddr) -> io::Result<TcpListener> {
    let (socket, address) = open(address, |domain| {
        Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
    })?;
    if address.is_ipv6() {
        // Set explicitly, because systems have different defaults.
        socket.set_only_v6(false)?;
    }
    // Needed after a restart, while connections of the former process still linger.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// A socket for the address, or for the IPv4 address that replaces it.
fn open<S>(
    address: SocketAddr,
    new: impl Fn(Domain) -> io::Result<S>,
) -> io::Result<(S, SocketAddr)> {
    match new(Domain::for_address(address)) {
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            Ok((new(Domain::IPV4)?, address))
        }
        socket => Ok((socket?, address)),
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
        let old = |domain| {
            if domain == Domain::IPV4 {
                Ok(domain)
            } else {
                Err(io::Error::other("not supported"))
            }
        };
        for (asked, given) in [
            ("[::]:80", Some("0.0.0.0:80")),
            ("127.0.0.1:80", Some("127.0.0.1:80")),
            ("[::1]:80", None),
        ] {
            let opened = open(asked.parse().expect("an address"), old).ok();
            assert_eq!(
                opened,
                given.map(|given| (Domain::IPV4, given.parse().expect("an address"))),
                "{asked}"
            );
        }
    }
}
