//! Listening at an address, be it at all of a machine, of either version of IP.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that wait to be accepted, if the system allows so many.
const BACKLOG: i32 = 1024;

/// Listens there. `[::]` means every address, those of IPv4 too; on a system without IPv6 it means
/// these alone.
///
/// Needs a Tokio runtime.
///
/// # Errors
/// The system's, with the address: it may be taken, or not this process's to listen at.
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
        // Whatever the system's default is.
        socket.set_only_v6(false)?;
    }
    // As after a restart, while connections of the former process linger.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// A socket for the address, or for the one that stands for it.
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
