// The projector of a model that sees: llama.cpp's mtmd reads images, and turns them into embeddings of the model.
//
// This header names no llama.cpp type, as session.h.
#pragma once

#include "session/image_table.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct llama_context;

namespace spac {

struct ProjectorConfig {
    std::string path;
    void *      model = nullptr; // llama_model * of the target, which outlives the projector
    std::string device;          // the device that computes; empty: the CPU
    int         n_threads        = 4;
    int         image_min_tokens = -1; // for models that choose an image's size; -1: the file's
    int         image_max_tokens = -1;
};

struct ImagePiece; // a part of an image, ready to be encoded

// A prompt with images, as one list of tokens.
struct ImagePrompt {
    std::vector<int32_t>                           tokens; // an image's are placeholders
    std::vector<std::shared_ptr<const ImagePiece>> pieces; // in their order
    int                                            n_images = 0;

    // Returns the piece that these placeholders stand for, or null.
    const ImagePiece * piece(int32_t placeholder) const;
};

class Projector {
  public:
    // Throws InputError if the file is no projector, or another model's.
    explicit Projector(const ProjectorConfig & config);
    ~Projector();
    Projector(const Projector &)             = delete;
    Projector & operator=(const Projector &) = delete;

    // Returns the text that stands for an image in a prompt's text. It is different in every process, so that no
    // message of a user holds it.
    const std::string & marker() const { return marker_; }
    const ImageTable &  table() const { return table_; }

    // Reads `images`, which are files in memory (JPEG, PNG, BMP, GIF, …), and the text in which the markers stand for
    // them. Throws InputError for an image that cannot be decoded and for another number of markers.
    ImagePrompt tokenize(const std::string & text, const std::vector<std::string> & images) const;

    // Encodes the piece and evaluates its embeddings on `ctx`, as positions from `pos` on. Returns llama.cpp's status.
    // Throws DeviceError if the piece cannot be encoded, and InputError if `ctx` cannot take it at once.
    int evaluate(llama_context * ctx, const ImagePiece & piece, int pos, int n_batch) const;
    // Throws InputError if a context with batches of these sizes cannot take the piece.
    void check(const ImagePiece & piece, int n_batch, int n_ubatch) const;

  private:
    struct Loaded;
    std::string             marker_;
    mutable ImageTable      table_;
    std::unique_ptr<Loaded> loaded_;
};

// Sends messages of mtmd to llama.cpp's own log.
void route_mtmd_log();

} // namespace spac
