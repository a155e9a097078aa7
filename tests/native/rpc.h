// Checks a client and a server of ggml's RPC in one process, and what happens when the connection is lost. Returns the
// number of failed checks.
#pragma once

int check_rpc();
