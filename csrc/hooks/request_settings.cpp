#include "hooks/request_settings.h"

#include "server-common.h"
#include "server-schema.h"

namespace spac {

namespace {
thread_local const RequestSettings * reading = nullptr;
}

RequestSettings::RequestSettings(const std::vector<float> & adapters, int image_tokens) : image_tokens_(image_tokens) {
    for (size_t i = 0; i < adapters.size(); ++i) {
        scales_[static_cast<int>(i)] = adapters[i];
    }
}

std::map<int, float> RequestSettings::adapter_scales() const {
    const std::lock_guard hold(lock_);
    return scales_;
}

void RequestSettings::set_adapter_scales(const std::string & body) {
    const auto            given = parse_lora_request(json::parse(body));
    const std::lock_guard hold(lock_);
    for (auto & [adapter, scale] : scales_) {
        const auto found = given.find(adapter);
        scale            = found == given.end() ? 0.0f : found->second;
    }
}

RequestSettings::Reading::Reading(const RequestSettings & settings) { reading = &settings; }

RequestSettings::Reading::~Reading() { reading = nullptr; }

const RequestSettings * RequestSettings::current() { return reading; }

} // namespace spac
