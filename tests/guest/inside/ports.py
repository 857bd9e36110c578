#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One side of the example of port channels in two directions, over verbs and no other link: the other guest has the
other. Guest 0 listens."""

import os

import devices


def main():
    role = os.environ["ROLE"]
    listener = os.environ["OWN_ADDRESS" if role == "0" else "PEER_ADDRESS"]
    devices.meet()
    program = os.path.join(os.environ["BUILD"], "bin", "example_05_port_bidirectional")
    os.execv(program, [program, f"eth0:{listener}:24705", role, "verbs:rxe0"])


if __name__ == "__main__":
    main()
