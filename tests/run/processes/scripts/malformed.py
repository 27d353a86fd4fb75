"""training.py, but from step 6 on worker 1 sends malformed messages to its peers."""

import os
import runpy
from pathlib import Path
from sys import argv

from elastane.run.protocol.messages import PartialSumsReady, State, SumsReady, Vote
from elastane.run.worker.links.frames import HEADER
from elastane.run.worker.links.mesh import Mesh
from elastane.run.worker.state.payload import pack_state

SENDER, FROM_ROUND = 1, 6
kind = argv.pop(1)
send = Mesh.send


def send_malformed(mesh, peer, message, payload=None):
    if mesh.worker != SENDER or not isinstance(message, Vote) or message.round < FROM_ROUND:
        return send(mesh, peer, message, payload)
    generation = message.generation
    match kind:
        case "noise":
            mesh.peers[peer].stream.put([memoryview(os.urandom(1000))])
        case "nested":
            nested = b"\x81\xa1x" + b"\x91" * 5000 + b"\xc0"
            mesh.peers[peer].stream.put([memoryview(HEADER.pack(len(nested), 0) + nested)])
        case "terabyte":
            mesh.peers[peer].stream.put([memoryview(HEADER.pack(1, 1 << 40) + bytes(10))])
        case "short message":
            return send(mesh, peer, State(generation=generation, committed=1), [b"short"])
        case "no state":
            return send(mesh, peer, State(generation=generation, committed=1), [bytes(16)])
        case "no reports":
            state = State(generation=generation, committed=1, reports=b"junk")
            return send(mesh, peer, state, pack_state({}, {}))
        case "unknown block":
            part = ((0, 1),)
            return send(
                mesh,
                peer,
                PartialSumsReady(
                    generation=generation, round=message.round, blocks=(999,), parts=((part, 0),)
                ),
            )
        case "short sums":
            return send(
                mesh, peer, SumsReady(generation=generation, round=message.round, blocks=(0,)), [b"\0\0\0\0"]
            )
    return mesh._flush(mesh.peers[peer])


Mesh.send = send_malformed
runpy.run_path(str(Path(__file__).with_name("training.py")), run_name="__main__")
