// Dispatches a shader of one binding with a descriptor set of two. The second binding was written with a buffer that is
// destroyed before the dispatch. Prints the number of dispatches that the shader counted.
//
//   unused_binding destroyed    leaves the destroyed buffer in the second binding
//   unused_binding live         writes a live buffer over it
//
// To build it by hand:
//
//   glslc -mfmt=c -o unused_binding.inc unused_binding.comp
//   c++ -std=c++20 -I . -o unused_binding unused_binding.cpp -lvulkan
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vulkan/vulkan.h>

static const uint32_t SHADER[] =
#include "unused_binding.inc"
    ;
static const int      DISPATCHES = 5000;
static const auto     STORAGE    = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
static const uint32_t COMPUTE    = VK_SHADER_STAGE_COMPUTE_BIT;

static void check(VkResult result) {
    if (result != VK_SUCCESS) {
        fprintf(stderr, "Vulkan's result is %d\n", result);
        exit(2);
    }
}

struct Buffer {
    VkBuffer       handle;
    VkDeviceMemory memory;
};

static Buffer make_buffer(VkDevice device) {
    Buffer                   made;
    const VkBufferCreateInfo info{
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 4096, .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
    check(vkCreateBuffer(device, &info, nullptr, &made.handle));
    VkMemoryRequirements needed;
    vkGetBufferMemoryRequirements(device, made.handle, &needed);
    const VkMemoryAllocateInfo memory{.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needed.size};
    check(vkAllocateMemory(device, &memory, nullptr, &made.memory));
    check(vkBindBufferMemory(device, made.handle, made.memory, 0));
    return made;
}

static void write_binding(VkDevice device, VkDescriptorSet set, uint32_t binding, const Buffer & buffer) {
    const VkDescriptorBufferInfo info{buffer.handle, 0, VK_WHOLE_SIZE};
    const VkWriteDescriptorSet   write{.sType           = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                       .dstSet          = set,
                                       .dstBinding      = binding,
                                       .descriptorCount = 1,
                                       .descriptorType  = STORAGE,
                                       .pBufferInfo     = &info};
    vkUpdateDescriptorSets(device, 1, &write, 0, nullptr);
}

static VkInstance make_instance() {
    const VkApplicationInfo    app{.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo info{.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app};
    VkInstance                 made;
    check(vkCreateInstance(&info, nullptr, &made));
    return made;
}

static VkDevice make_device(VkInstance instance) {
    uint32_t         n = 1;
    VkPhysicalDevice physical;
    if (vkEnumeratePhysicalDevices(instance, &n, &physical) < 0 || n == 0) {
        fprintf(stderr, "there is no Vulkan device\n");
        exit(2);
    }
    const float                   priority = 1;
    const VkDeviceQueueCreateInfo queue{
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info{
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1, .pQueueCreateInfos = &queue};
    VkDevice made;
    check(vkCreateDevice(physical, &info, nullptr, &made));
    return made;
}

static VkPipeline make_pipeline(VkDevice device, VkPipelineLayout layout) {
    const VkShaderModuleCreateInfo code{
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = sizeof SHADER, .pCode = SHADER};
    VkShaderModule shader;
    check(vkCreateShaderModule(device, &code, nullptr, &shader));
    const VkComputePipelineCreateInfo info{.sType  = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                           .stage  = {.sType  = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                      .stage  = VK_SHADER_STAGE_COMPUTE_BIT,
                                                      .module = shader,
                                                      .pName  = "main"},
                                           .layout = layout};
    VkPipeline                        made;
    check(vkCreateComputePipelines(device, nullptr, 1, &info, nullptr, &made));
    return made;
}

static VkDescriptorSet make_set(VkDevice device, VkDescriptorSetLayout layout) {
    const VkDescriptorPoolSize       size{STORAGE, 2};
    const VkDescriptorPoolCreateInfo info{
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1, .poolSizeCount = 1, .pPoolSizes = &size};
    VkDescriptorPool pool;
    check(vkCreateDescriptorPool(device, &info, nullptr, &pool));
    const VkDescriptorSetAllocateInfo allocate{.sType              = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                               .descriptorPool     = pool,
                                               .descriptorSetCount = 1,
                                               .pSetLayouts        = &layout};
    VkDescriptorSet                   made;
    check(vkAllocateDescriptorSets(device, &allocate, &made));
    return made;
}

static VkCommandBuffer make_commands(VkDevice device) {
    const VkCommandPoolCreateInfo info{.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                       .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT};
    VkCommandPool                 pool;
    check(vkCreateCommandPool(device, &info, nullptr, &pool));
    const VkCommandBufferAllocateInfo allocate{
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool, .commandBufferCount = 1};
    VkCommandBuffer made;
    check(vkAllocateCommandBuffers(device, &allocate, &made));
    return made;
}

static void dispatch(VkQueue queue, VkCommandBuffer commands, VkPipeline pipeline, VkPipelineLayout layout,
                     VkDescriptorSet set) {
    const VkCommandBufferBeginInfo begin{.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    check(vkBeginCommandBuffer(commands, &begin));
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, nullptr);
    vkCmdDispatch(commands, 1, 1, 1);
    check(vkEndCommandBuffer(commands));
    const VkSubmitInfo submit{
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
    check(vkQueueSubmit(queue, 1, &submit, nullptr));
    check(vkQueueWaitIdle(queue));
}

int main(int argc, char ** argv) {
    const bool       live     = argc > 1 && strcmp(argv[1], "live") == 0;
    const VkInstance instance = make_instance();
    const VkDevice   device   = make_device(instance);
    VkQueue          queue;
    vkGetDeviceQueue(device, 0, 0, &queue);

    const VkDescriptorSetLayoutBinding bindings[]{{0, STORAGE, 1, COMPUTE, nullptr}, {1, STORAGE, 1, COMPUTE, nullptr}};
    const VkDescriptorSetLayoutCreateInfo set_info{
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = 2, .pBindings = bindings};
    VkDescriptorSetLayout set_layout;
    check(vkCreateDescriptorSetLayout(device, &set_info, nullptr, &set_layout));
    const VkPipelineLayoutCreateInfo layout_info{
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1, .pSetLayouts = &set_layout};
    VkPipelineLayout layout;
    check(vkCreatePipelineLayout(device, &layout_info, nullptr, &layout));

    const VkPipeline      pipeline = make_pipeline(device, layout);
    const VkDescriptorSet set      = make_set(device, set_layout);
    const VkCommandBuffer commands = make_commands(device);
    const Buffer          counter  = make_buffer(device);
    void *                counted;
    check(vkMapMemory(device, counter.memory, 0, VK_WHOLE_SIZE, 0, &counted));
    memset(counted, 0, sizeof(uint32_t));
    write_binding(device, set, 0, counter);
    // ggml finds its functions so. A direct call would pass keep_buffers.cpp by.
    const auto destroy_buffer =
        reinterpret_cast<PFN_vkDestroyBuffer>(vkGetInstanceProcAddr(instance, "vkDestroyBuffer"));

    for (int i = 0; i < DISPATCHES; i++) {
        const Buffer other = make_buffer(device);
        write_binding(device, set, 1, other);
        if (live) {
            write_binding(device, set, 1, counter);
        }
        destroy_buffer(device, other.handle, nullptr);
        vkFreeMemory(device, other.memory, nullptr);
        dispatch(queue, commands, pipeline, layout, set);
    }
    printf("%u\n", *static_cast<const uint32_t *>(counted));
    return 0;
}
