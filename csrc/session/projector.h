// The projector of a model that sees: llama.cpp's mtmd reads images, and turns them into embeddings of the model.
//
// This header names no llama.cpp type, as session.h.
#pragma once

#include "core/not_copied.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct mtmd_context;

namespace spac {

struct ProjectorConfig {
    std::string path;
    void *      model = nullptr; // llama_model * of the target, which outlives the projector
    std::string device;          // the device that computes; empty: the CPU
    int         n_threads        = 4;
    int         image_min_tokens = -1; // for models that choose an image's size; -1: the file's
    int         image_max_tokens = -1;
    std::string marker; // what stands for an image in a prompt's text
};

// A prompt with images, as one list of tokens. An image stands there as a run of equal negative numbers, one for each
// of its places in the memory. The number belongs to the image's content, so lists of tokens are compared as usual.
struct ImagePrompt {
    std::vector<int32_t>     tokens;
    int                      n_images = 0;
    std::string              text; // the one that was read, and the images' files
    std::vector<std::string> files;
};

class Projector : NotCopied {
  public:
    // Throws InputError if the file is no projector, or another model's.
    explicit Projector(const ProjectorConfig & config);

    // Returns the text that stands for an image in a prompt's text.
    const std::string & marker() const { return marker_; }
    // Returns llama.cpp's object.
    std::shared_ptr<mtmd_context> context() const { return context_; }

    // Reads `images`, which are files in memory (JPEG, PNG, BMP, GIF, …), and the text in which the markers stand for
    // them. Throws InputError for an image that cannot be decoded and for another number of markers.
    ImagePrompt tokenize(const std::string & text, const std::vector<std::string> & images) const;

  private:
    std::string                   marker_;
    std::shared_ptr<mtmd_context> context_;
};

// Throws InputError for a file in memory that is no image, or that has more than 100 million pixels.
void check_image(const unsigned char * data, size_t n_bytes, const std::string & name);

// Returns the first error that mtmd has logged on this thread since the last call, as a clause for a message: one line,
// without the name of the function that reported it.
std::string take_mtmd_fault();

} // namespace spac
