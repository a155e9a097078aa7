// The projector of a model that sees: llama.cpp's mtmd reads images, and turns them into embeddings of the model.
//
// This header names no llama.cpp type, as session.h.
#pragma once

#include "core/not_copied.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

struct llama_context;
struct mtmd_context;

namespace spac {

// The images that sequences hold. An image stands in a list of tokens as a run of equal placeholders, one for each of
// its places in the memory. The placeholder is a negative number that belongs to the image's content. So lists of
// tokens are compared as usual, and an image is part of a common prefix only if it is the same one.
inline bool is_placeholder(int32_t token) { return token < 0; }

// The size of an image: its places in the memory, and its positions. With M-RoPE it takes fewer positions than places.
struct ImageExtent {
    int n_tokens = 0;
    int n_pos    = 0;
};

// May be used from any thread.
class ImageTable {
  public:
    // Returns the placeholder of the image with this content. A content has one extent.
    int32_t placeholder(const std::string & content, ImageExtent extent);
    // Returns the extent of a placeholder; an empty one for a number that this table never gave.
    ImageExtent extent(int32_t placeholder) const;
    // Returns the position at which a token after the first `n` of `tokens` stands. They hold whole images.
    int position(const std::vector<int32_t> & tokens, int n) const;

  private:
    mutable std::mutex                       mutex_;
    std::unordered_map<std::string, int32_t> placeholders_;
    std::vector<ImageExtent>                 extents_;
};

struct ProjectorConfig {
    std::string path;
    void *      model = nullptr; // llama_model * of the target, which outlives the projector
    std::string device;          // the device that computes; empty: the CPU
    int         n_threads        = 4;
    int         image_min_tokens = -1; // for models that choose an image's size; -1: the file's
    int         image_max_tokens = -1;
    std::string marker; // what stands for an image in a prompt's text
};

struct ImagePiece; // a part of an image, ready to be encoded

// A prompt with images, as one list of tokens.
struct ImagePrompt {
    std::vector<int32_t>                           tokens; // an image's are placeholders
    std::vector<std::shared_ptr<const ImagePiece>> pieces; // in their order
    int                                            n_images = 0;
    std::string                                    text; // the one that was read, and the images' files
    std::vector<std::string>                       files;

    // Returns the piece that these placeholders stand for, or null.
    const ImagePiece * piece(int32_t placeholder) const;
};

class Projector : NotCopied {
  public:
    // Throws InputError if the file is no projector, or another model's.
    explicit Projector(const ProjectorConfig & config);
    ~Projector();

    // Returns the text that stands for an image in a prompt's text.
    const std::string & marker() const { return marker_; }
    const ImageTable &  table() const { return table_; }
    // Returns llama.cpp's object, for code that uses it without a session.
    std::shared_ptr<mtmd_context> context() const;

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

// Throws InputError for a file in memory that is no image, or that has more than 100 million pixels.
void check_image(const unsigned char * data, size_t n_bytes, const std::string & name);

// Sends messages of mtmd to llama.cpp's own log.
void route_mtmd_log();

} // namespace spac
