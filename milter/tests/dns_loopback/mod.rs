//! A name server on loopback, UDP and TCP, that says what a test wants and writes down what it is asked.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(crate) const TXT: u16 = 16;
const CNAME: u16 = 5;
const SOA: u16 = 6;
const OPT: u16 = 41;

/// What the server says about a name, whatever the type asked for.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    Records(Vec<Record>),
    NoData {
        soa: Option<u32>,
    },
    NoName {
        soa: Option<u32>,
    },
    Code(u8),
    Garbage,
    Silence,
    /// By UDP truncated, by TCP the end of the connection.
    TruncatedAndHungUp,
    Late(Duration, Box<Say>),
}

#[derive(Clone, Debug)]
pub(crate) struct Record {
    owner: &'static str,
    kind: u16,
    data: Vec<u8>,
}

pub(crate) fn txt(owner: &'static str, strings: &[&[u8]]) -> Record {
    let data = strings
        .iter()
        .flat_map(|string| [&[u8::try_from(string.len()).unwrap()], *string].concat())
        .collect();
    Record {
        owner,
        kind: TXT,
        data,
    }
}

pub(crate) fn cname(owner: &'static str, target: &str) -> Record {
    Record {
        owner,
        kind: CNAME,
        data: wire_name(target),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    name: String,
    kind: u16,
    transport: Transport,
}

pub(crate) fn query(name: &str, kind: u16, transport: Transport) -> Query {
    Query {
        name: name.into(),
        kind,
        transport,
    }
}

pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Query>>>,
    _tasks: JoinSet<()>,
}

impl NameServer {
    /// Starts one; a name that is not given does not exist.
    pub(crate) async fn start<const N: usize>(names: [(&str, Say); N]) -> Self {
        let names: HashMap<String, Say> = names
            .into_iter()
            .map(|(name, say)| (name.to_owned(), say))
            .collect();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let desk = Arc::new(Desk {
            names,
            asked: Arc::clone(&asked),
        });
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (Arc::new(udp), tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(udp, Arc::clone(&desk)));
        tasks.spawn(serve_tcp(tcp, desk));
        Self {
            address,
            asked,
            _tasks: tasks,
        }
    }

    /// All queries so far, in order.
    pub(crate) fn asked(&self) -> Vec<Query> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, desk: Arc<Desk>) {
    let mut buffer = [0; 4096];
    let mut replies = JoinSet::new();
    loop {
        let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
        let (socket, desk, message) = (
            Arc::clone(&socket),
            Arc::clone(&desk),
            buffer[..length].to_vec(),
        );
        replies.spawn(async move {
            if let Some(reply) = desk.reply(&message, Transport::Udp).await {
                socket.send_to(&reply, client).await.unwrap();
            }
        });
    }
}

async fn serve_tcp(listener: TcpListener, desk: Arc<Desk>) {
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let desk = Arc::clone(&desk);
        connections.spawn(async move {
            while let Ok(length) = stream.read_u16().await {
                let mut message = vec![0; length.into()];
                stream.read_exact(&mut message).await.unwrap();
                let Some(reply) = desk.reply(&message, Transport::Tcp).await else {
                    return;
                };
                stream
                    .write_u16(reply.len().try_into().unwrap())
                    .await
                    .unwrap();
                stream.write_all(&reply).await.unwrap();
            }
        });
    }
}

struct Desk {
    names: HashMap<String, Say>,
    asked: Arc<Mutex<Vec<Query>>>,
}

impl Desk {
    async fn reply(&self, message: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let mut at = 12;
        let mut labels = Vec::new();
        while message[at] != 0 {
            let end = at + 1 + usize::from(message[at]);
            labels.push(String::from_utf8(message[at + 1..end].to_vec()).unwrap());
            at = end;
        }
        let name = labels.join(".");
        let kind = u16::from_be_bytes([message[at + 1], message[at + 2]]);
        let question = &message[12..at + 5];
        let limit = match (transport, &message[at + 5..]) {
            (Transport::Tcp, _) => usize::from(u16::MAX),
            (Transport::Udp, [0, high, low, size @ ..])
                if u16::from_be_bytes([*high, *low]) == OPT =>
            {
                usize::from(u16::from_be_bytes([size[0], size[1]]))
            }
            (Transport::Udp, _) => 512,
        };
        self.asked
            .lock()
            .unwrap()
            .push(query(&name, kind, transport));

        let mut say = self
            .names
            .get(&name.to_ascii_lowercase())
            .unwrap_or(&Say::NoName { soa: Some(60) });
        if let Say::Late(delay, then) = say {
            sleep(*delay).await;
            say = then;
        }
        let (code, records, soa) = match say {
            Say::Records(records) => (0, records.as_slice(), None),
            Say::NoData { soa } => (0, &[][..], *soa),
            Say::NoName { soa } => (3, &[][..], *soa),
            Say::Code(code) => (*code, &[][..], None),
            Say::Silence => return None,
            Say::TruncatedAndHungUp if transport == Transport::Tcp => return None,
            Say::TruncatedAndHungUp => {
                return Some(
                    [
                        &message[..2],
                        &[0x83, 0x80, 0, 1, 0, 0, 0, 0, 0, 0],
                        question,
                    ]
                    .concat(),
                );
            }
            Say::Garbage => {
                return Some([&message[..2], &[0x81, 0x80, 0, 1, 0, 9, 0, 0, 0, 0, 0xc0]].concat());
            }
            Say::Late(..) => panic!("late twice"),
        };
        let records: Vec<_> = records
            .iter()
            .filter(|record| [kind, CNAME].contains(&record.kind))
            .collect();
        let mut reply = message[..2].to_vec();
        reply.extend([
            0x81,
            0x80 | code,
            0,
            1,
            0,
            u8::try_from(records.len()).unwrap(),
            0,
            u8::from(soa.is_some()),
            0,
            0,
        ]);
        reply.extend(question);
        for record in records {
            push_record(&mut reply, record.owner, record.kind, 300, &record.data);
        }
        if let Some(minimum) = soa {
            let data = [
                wire_name("ns.example.org"),
                wire_name("h.example.org"),
                vec![0; 16],
                minimum.to_be_bytes().to_vec(),
            ];
            push_record(&mut reply, "example.org", SOA, minimum, &data.concat());
        }
        if reply.len() > limit {
            reply.truncate(12 + question.len());
            reply[2] |= 0x02;
            reply[6..12].fill(0);
        }
        Some(reply)
    }
}

fn push_record(reply: &mut Vec<u8>, owner: &str, kind: u16, ttl: u32, data: &[u8]) {
    reply.extend(wire_name(owner));
    reply.extend(kind.to_be_bytes());
    reply.extend([0, 1]);
    reply.extend(ttl.to_be_bytes());
    reply.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
    reply.extend(data);
}

fn wire_name(name: &str) -> Vec<u8> {
    let labels = name
        .split('.')
        .flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat());
    labels.chain([0]).collect()
}
