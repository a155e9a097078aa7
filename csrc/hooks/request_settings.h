// The settings of all requests to one loop, which hold for no other loop of this process.
#pragma once

#include "core/not_copied.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace spac {

// The linker's --wrap leads llama.cpp's parsers to functions that ask for the settings of the loop whose request this
// thread reads (request_parameters.cpp, request_images.cpp).
class RequestSettings : NotCopied {
  public:
    // `adapters` has the scales of the target's adapters. `image_tokens` is the most tokens of an image that the model
    // evaluates at once, as with attention to later places; 0: no limit.
    RequestSettings(const std::vector<float> & adapters, int image_tokens);

    // Returns the scales of a request that names none; empty without adapters. Any thread may call it.
    std::map<int, float> adapter_scales() const;
    // Sets them as the body of a request to /lora-adapters does. llama.cpp has accepted it.
    void set_adapter_scales(const std::string & body);
    int  image_tokens() const { return image_tokens_; }

    // Makes settings those of the request that this thread reads.
    class Reading : NotCopied {
      public:
        explicit Reading(const RequestSettings & settings);
        ~Reading();
    };
    // Returns the settings of the request that this thread reads, or null.
    static const RequestSettings * current();

  private:
    mutable std::mutex   lock_; // of the scales
    std::map<int, float> scales_;
    int                  image_tokens_;
};

} // namespace spac
