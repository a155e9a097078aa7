// Foretelling a block's experts on the host, from the input of the block before it.
//
// The residual stream changes slowly, so a router chooses mostly the same experts if it is shown the input of the block
// before its own. The host has this input, since it computes a part of that block, and its threads are idle until the
// next block's ids come. So this costs the device nothing. It is for reading rows early (early_rows.h). Looking ahead
// (lookahead.h) asks routers on the device, some layers ahead, so that copies have time.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/graph/router.h"
#include "backend/graph/split_graph.h"
#include "core/not_copied.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace spac {

class NextExperts : NotCopied {
  public:
    static constexpr int most_tokens = 8; // of a block; larger batches use most experts of a layer anyhow

    // Begins a graph. Copies the routers of its blocks from the device, in 8 bits, if they are not known yet. Nothing
    // on the device may wait for this thread.
    void begin(const SplitGraph & g);
    // Keeps a block's input, which has arrived.
    void keep(const SplitBlock & b, const Staging & s);
    // Returns the experts that the block is foretold to use, by the last input that was kept: all tokens' best ones
    // first, each once. Returns none if that input or the router is not known. It computes on a CPU backend.
    const std::vector<int32_t> & foretell(ggml_backend_t cpu, const SplitBlock & b);

  private:
    // A layer's router.
    struct Table {
        explicit Table(const Router & router);
        ggml_cgraph * graph_of(int n_tokens); // for the products of so many tokens

        Chooser                                    chooser;
        int64_t                                    width, n_expert;
        std::vector<char>                          bytes;
        ggml_context_ptr                           ctx;
        ggml_tensor *                              weight;
        std::array<ggml_cgraph *, most_tokens + 1> graphs{};
    };

    std::map<int, std::unique_ptr<Table>> tables_; // by layer; null: the router cannot be asked
    std::vector<float>                    input_;  // [n_tokens_, width_]
    int64_t                               width_    = 0;
    int                                   n_tokens_ = 0; // 0: no input was kept
    std::vector<int32_t>                  chosen_, foretold_;
};

} // namespace spac
